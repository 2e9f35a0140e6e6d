// SIGMOID with SIMD. llama.cpp calls expf for each number, which took 2% of the time of a round of a small model.

#include "kernels.h"
#include "simd.h"
#include "vec.h"

#include <cmath>

namespace pymtp {

bool compute_sigmoid(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];

    const auto rows_are_f32 = [](const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
    };
    if (ggml_get_unary_op(dst) != GGML_UNARY_OP_SIGMOID || !rows_are_f32(src) || !rows_are_f32(dst)) {
        return false;
    }
    // Each thread computes whole rows. So the index of a number in its row decides alone whether expf or its SIMD
    // version computes the number, and the number of threads does not change results.
    for (int64_t ir = params->ith; ir < ggml_nrows(src); ir += params->nth) {
        const int64_t i1 = ir%src->ne[1];
        const int64_t i2 = ir/src->ne[1]%src->ne[2];
        const int64_t i3 = ir/src->ne[1]/src->ne[2];

        const float * x = (const float *) ((const char *) src->data + i1*src->nb[1] + i2*src->nb[2] + i3*src->nb[3]);
        float *       y = (float *) ((char *) dst->data + i1*dst->nb[1] + i2*dst->nb[2] + i3*dst->nb[3]);

        int64_t i = 0;
#if defined(PYMTP_AVX512)
        const __m512 one = _mm512_set1_ps(1.0f);
        for (; i + simd::LANES <= src->ne[0]; i += simd::LANES) {
            const __m512 e = ggml_v_expf(_mm512_sub_ps(simd::fzero(), simd::fload(x + i)));
            simd::fstore(y + i, _mm512_div_ps(one, _mm512_add_ps(one, e)));
        }
#elif defined(PYMTP_AVX2)
        const __m256 one = _mm256_set1_ps(1.0f);
        for (; i + simd::LANES <= src->ne[0]; i += simd::LANES) {
            const __m256 e = ggml_v_expf(_mm256_sub_ps(simd::fzero(), simd::fload(x + i)));
            simd::fstore(y + i, _mm256_div_ps(one, _mm256_add_ps(one, e)));
        }
#endif
        for (; i < src->ne[0]; ++i) {
            y[i] = 1.0f/(1.0f + expf(-x[i]));
        }
    }
    return true;
}

}  // namespace pymtp
