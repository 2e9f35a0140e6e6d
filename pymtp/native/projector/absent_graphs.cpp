// Stands in for the graphs of the projectors that no model of pymtp has: clip.cpp names all of them, and would need
// their sources. pymtp_inspect_projector refuses the files of these projectors, so that nothing is built here.
#include "models/models.h"

namespace {

[[noreturn]] void refuse() {
    GGML_ABORT("this build has no such projector");
}

} // namespace

#define PYMTP_ABSENT(graph)                     \
    ggml_cgraph * clip_graph_##graph::build() { \
        refuse();                               \
    }

PYMTP_ABSENT(siglip)
PYMTP_ABSENT(gemma4v)
PYMTP_ABSENT(gemma4uv)
PYMTP_ABSENT(pixtral)
PYMTP_ABSENT(deepseek4v)
PYMTP_ABSENT(ling3vl)
PYMTP_ABSENT(minimax_m3)
PYMTP_ABSENT(mimovl)
PYMTP_ABSENT(step3vl)
PYMTP_ABSENT(youtuvl)
PYMTP_ABSENT(yasa2)
PYMTP_ABSENT(minicpmv)
PYMTP_ABSENT(minicpmv4_6)
PYMTP_ABSENT(internvl)
PYMTP_ABSENT(nemotron_v2_vl)
PYMTP_ABSENT(llama4)
PYMTP_ABSENT(kimivl)
PYMTP_ABSENT(paddleocr)
PYMTP_ABSENT(dotsocr)
PYMTP_ABSENT(dots3note_a)
PYMTP_ABSENT(cogvlm)
PYMTP_ABSENT(llava)
PYMTP_ABSENT(whisper_enc)
PYMTP_ABSENT(deepseekocr)
PYMTP_ABSENT(deepseekocr2)
PYMTP_ABSENT(conformer)
PYMTP_ABSENT(granite_speech)
PYMTP_ABSENT(gemma4a)
PYMTP_ABSENT(gemma4ua)
PYMTP_ABSENT(glm4v)
PYMTP_ABSENT(hunyuanvl)
PYMTP_ABSENT(mobilenetv5)
PYMTP_ABSENT(qwen3a)
PYMTP_ABSENT(mimo_audio)
PYMTP_ABSENT(qwen3tts_spkenc)
PYMTP_ABSENT(qwen3tts_gen)
PYMTP_ABSENT(pockettts_spkenc)
PYMTP_ABSENT(pockettts_gen)
PYMTP_ABSENT(kimik25)
PYMTP_ABSENT(parakeet)
PYMTP_ABSENT(exaone4_5)
PYMTP_ABSENT(granite4_vision)
PYMTP_ABSENT(muse_glimmer)

#undef PYMTP_ABSENT

ggml_tensor * clip_graph_gemma4v::build_mm(ggml_tensor *, ggml_tensor *) const {
    refuse();
}

ggml_tensor * clip_graph_mimovl::build_mm(ggml_tensor *, ggml_tensor *) const {
    refuse();
}

ggml_tensor * clip_graph_gemma4a::build_mm(ggml_tensor *, ggml_tensor *) const {
    refuse();
}

std::vector<c2w_state_slot> list_c2w_state_slots(const clip_hparams &, const clip_model &) {
    refuse();
}

std::vector<c2w_state_slot> list_pockettts_state_slots(const clip_hparams &, const clip_model &) {
    refuse();
}
