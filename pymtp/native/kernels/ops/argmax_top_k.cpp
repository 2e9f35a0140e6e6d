// ARGMAX and TOP_K with a defined result: of equal numbers the first wins, and NaN is above all numbers.
//
// A token that is sampled in the graph must be the one that the sampler on the host would choose, and NaN logits must
// not go unnoticed. llama.cpp's argmax takes the last of equal numbers, and ignores all numbers before a NaN; its top_k
// sorts by a comparison that is inconsistent if there are NaNs. The argmax for CUDA is in cuda/pymtp_argmax.cuh.

#include "kernels.h"
#include "ops.h"

#include <algorithm>
#include <cmath>

namespace pymtp {

bool compute_argmax(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    if (src0->type != GGML_TYPE_F32 || src0->nb[0] != sizeof(float)) {
        return false;
    }
    for (int64_t i1 = params->ith; i1 < src0->ne[1]; i1 += params->nth) {
        const float * x = (const float *) ((const char *) src0->data + i1*src0->nb[1]);

        int32_t idx = 0;
        for (int64_t i = 1; i < src0->ne[0]; ++i) {
            if (x[i] > x[idx] || (std::isnan(x[i]) && !std::isnan(x[idx]))) {
                idx = i;
            }
        }
        *(int32_t *) ((char *) dst->data + i1*dst->nb[0]) = idx;
    }
    return true;
}

bool compute_top_k(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];

    if (src0->type != GGML_TYPE_F32 || src0->nb[0] != sizeof(float) || dst->nb[0] != sizeof(int32_t)) {
        return false;
    }
    const int64_t n = src0->ne[0];
    const int64_t k = dst->ne[0];

    int32_t * idx = (int32_t *) params->wdata + (n + CACHE_LINE_SIZE_F32)*params->ith;

    for (int64_t ir = params->ith; ir < ggml_nrows(src0); ir += params->nth) {
        const float * x = (const float *) ((const char *) src0->data + ir*src0->nb[1]);

        for (int64_t i = 0; i < n; ++i) {
            idx[i] = i;
        }
        std::partial_sort(idx, idx + k, idx + n, [x](int32_t a, int32_t b) {
            if (std::isnan(x[a]) || std::isnan(x[b])) {
                return std::isnan(x[a]) && (!std::isnan(x[b]) || a < b);
            }
            return x[a] > x[b] || (x[a] == x[b] && a < b);
        });

        int32_t * y = (int32_t *) ((char *) dst->data + ir*dst->nb[1]);
        std::copy(idx, idx + k, y);
        if (k > 1) {
            std::swap(y[0], y[1]); // as in llama.cpp: shows callers that ggml promises no order
        }
    }
    return true;
}

}  // namespace pymtp
