#include "rope_input.h"

#include <vector>

namespace {

class input_positions : public llm_graph_input_pos {
public:
    input_positions(const llm_graph_input_pos & replaced, const pymtp_images_of & images_of) :
        llm_graph_input_pos(replaced.n_pos_per_embd), images_of(images_of) {
        pos = replaced.pos;
    }

    void set_input(const llama_ubatch * ubatch) override {
        std::vector<int32_t> data(pos->ne[0]);
        pymtp_write_positions(*ubatch, images_of, 0, 1, ubatch->n_tokens, data.data());
        ggml_backend_tensor_set(pos, data.data(), 0, data.size()*sizeof(int32_t));
    }

private:
    const pymtp_images_of & images_of;
};

} // namespace

void pymtp_write_positions(const llama_ubatch & ubatch, const pymtp_images_of & images_of, int64_t first,
        int64_t stride, int64_t n, int32_t * data) {
    for (int64_t i = 0; i < n; ++i) {
        const int64_t token = first + i*stride;
        const pymtp_rope_position at = pymtp_rope_position_of(images_of(ubatch.seq_id[token][0]), ubatch.pos[token]);
        data[i]       = at.t;
        data[n + i]   = at.y;
        data[2*n + i] = at.x;
        data[3*n + i] = 0;
    }
}

void pymtp_replace_positions(llm_graph_result & graph, const pymtp_images_of & images_of) {
    for (llm_graph_input_ptr & input : graph.inputs) {
        const auto * positions = dynamic_cast<const llm_graph_input_pos *>(input.get());
        if (positions && positions->n_pos_per_embd == 4) {
            input = std::make_unique<input_positions>(*positions, images_of);
        }
    }
}
