// Reports the mean weight of each norm layer of a head. A mean near 0 reveals a faulty file, whose norms lack the 1
// that the model's RMSNorm adds to its weights.
#include "api_guard.h"
#include "model.h"
#include "pymtp.h"

#include "llama-model.h"

#include <cstring>
#include <numeric>
#include <vector>

static double mean_of(const ggml_tensor * norm) {
    std::vector<float> values(ggml_nelements(norm));
    ggml_backend_tensor_get(norm, values.data(), 0, ggml_nbytes(norm));
    return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

int32_t pymtp_head_norms(const pymtp_model * model, pymtp_head_norm * norms, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        const llama_model & shared = *model->shared;
        if (shared.hparams.n_layer_nextn == 0 || shared.layers.empty()) { // no head, or only metadata was loaded
            return 0;
        }
        const llama_layer & layer = shared.layers[shared.hparams.n_layer()];
        int32_t n = 0;
        for (const ggml_tensor * norm : { layer.nextn.enorm, layer.nextn.hnorm, layer.nextn.shared_head_norm,
                layer.attn_norm, layer.attn_post_norm, layer.attn_q_norm, layer.attn_k_norm }) {
            if (norm && norm->type == GGML_TYPE_F32 && n < n_max) {
                std::strncpy(norms[n].name, norm->name, sizeof(norms[n].name) - 1);
                norms[n++].mean = mean_of(norm);
            }
        }
        return n;
    });
}
