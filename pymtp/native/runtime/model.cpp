// Loads models, and answers what is asked of their vocabulary.
#include "model.h"

#include "border.h"
#include "file_rows.h"
#include "grammar.h"
#include "pymtp.h"

#include "llama-model.h"
#include "pymtp_context.h"

#include <string>

static bool keep_loading(float /*progress*/, void * /*user_data*/) {
    return !pymtp_host_wants_stop();
}

static bool has_head(const llama_model & model) {
    return model.hparams.n_layer_nextn > 0 && model.layers[model.hparams.n_layer()].nextn.eh_proj;
}

static pymtp_model * load(const char * path, const llama_model_params & params) {
    return pymtp_guarded<pymtp_model *>(nullptr, [&]() -> pymtp_model * {
        std::shared_ptr<llama_model> model(llama_model_load_from_file(path, params), llama_model_free);
        if (!model) {
            pymtp_set_error("llama.cpp cannot load the file");
            return nullptr;
        }
        auto shared = std::make_unique<pymtp_model>(std::move(model));
        if (params.load_mtp && !params.vocab_only && !params.no_alloc && has_head(*shared->shared)) {
            shared->output_rows = std::make_shared<pymtp_file_rows>(path, *pymtp_draft_output(*shared->shared));
        }
        return shared.release();
    });
}

pymtp_model * pymtp_model_load(const char * path, int32_t n_gpu_layers, bool mtp, bool vocab_only) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers      = n_gpu_layers;
    params.load_mtp          = mtp;
    params.vocab_only        = vocab_only;
    params.progress_callback = keep_loading;
    return load(path, params);
}

pymtp_model * pymtp_model_plan(const char * path, int32_t n_gpu_layers, bool mtp) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = n_gpu_layers;
    params.load_mtp     = mtp;
    params.no_alloc     = true;
    params.load_mode    = LLAMA_LOAD_MODE_NONE; // a mapped file would be there already
    return load(path, params);
}

void pymtp_model_free(pymtp_model * model) {
    delete model;
}

std::shared_ptr<const pymtp_spelling> pymtp_model::spelling() const {
    std::call_once(made_spelling, [&] {
        kept_spelling = std::make_shared<pymtp_spelling>(llama_model_get_vocab(shared.get()));
    });
    return kept_spelling;
}

llama_model * pymtp_model_get(const pymtp_model * model) {
    return model->shared.get();
}

int32_t pymtp_tokenize(const pymtp_model * model, const char * text, int32_t length, llama_token * tokens, int32_t n_max, bool add_special) {
    return pymtp_guarded<int32_t>(INT32_MIN, [&] {
        return llama_tokenize(llama_model_get_vocab(model->shared.get()), text, length, tokens, n_max, add_special, true);
    });
}

int32_t pymtp_token_piece(const pymtp_model * model, llama_token token, char * piece, int32_t n_max) {
    return pymtp_guarded<int32_t>(INT32_MIN, [&] {
        const std::string bytes = pymtp_bytes_of(llama_model_get_vocab(model->shared.get()), token);
        const int32_t n = bytes.size();
        if (n > n_max) {
            return -n;
        }
        std::copy(bytes.begin(), bytes.end(), piece);
        return n;
    });
}
