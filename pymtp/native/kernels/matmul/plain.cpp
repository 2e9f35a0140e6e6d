// Chooses the kernel for weights in the layout of the GGUF file. neon.cpp does so on 64-bit ARM.

#include "matmul/plain_blocks.h"
#include "matmul/plain_codebooks.h"
#include "matmul/plain_prepare.h"

#ifndef __aarch64__

namespace pymtp {

#ifdef PYMTP_AVX2
// The kernel of plain.h is used for any number of rows, since it takes less time than llama.cpp's tiles and
// llamafile_sgemm: on Zen 5, 0.3 to 0.95 of their time for 16 to 512 rows, with AVX-512 and with AVX2.
template <typename L> static const rows_kernel * kernel() {
    static const rows_kernel it = {1, plain::prepared_size, plain::prepare<L>, plain::multiply<L>, INT64_MAX};
    return &it;
}
#endif

#if defined(PYMTP_AVX512) && defined(PYMTP_VNNI)
// Q8_0 weights with rows of this many elements or more are multiplied by the kernel of plain.h, because the hardware
// prefetches such long rows. Compared with the kernel of short_q8_0.cpp, it takes 0.9 to 1 of the time for rows of 1024
// to 3584 elements, and 1.4 to 1.5 of the time for rows of 576 to 640 elements (a single row of activations, weights
// from memory, Zen 5).
constexpr int64_t LONG_ROW = 768;
#endif

const rows_kernel * plain_kernel_of(const ggml_tensor * weights) {
    if (weights->extra) {
        return nullptr;  // the weights have another layout
    }
    switch (weights->type) {
#if defined(PYMTP_AVX2)
        case GGML_TYPE_Q4_0:    return kernel<plain::q4_0>();
#if defined(PYMTP_AVX512) && defined(PYMTP_VNNI)
        case GGML_TYPE_Q8_0:    return weights->ne[0] < LONG_ROW ? &short_q8_0_kernel : kernel<plain::q8_0>();
#else
        case GGML_TYPE_Q8_0:    return kernel<plain::q8_0>();
#endif
        case GGML_TYPE_Q2_K:    return kernel<plain::q2_k>();
        case GGML_TYPE_Q3_K:    return kernel<plain::q3_k>();
        case GGML_TYPE_Q4_K:    return kernel<plain::q4_k>();
        case GGML_TYPE_Q5_K:    return kernel<plain::q5_k>();
        case GGML_TYPE_Q6_K:    return kernel<plain::q6_k>();
        case GGML_TYPE_IQ4_NL:  return kernel<plain::iq4_nl>();
        case GGML_TYPE_IQ4_XS:  return kernel<plain::iq4_xs>();
        case GGML_TYPE_Q4_1:    return kernel<plain::q4_1>();
        case GGML_TYPE_Q5_0:    return kernel<plain::q5_0>();
        case GGML_TYPE_Q5_1:    return kernel<plain::q5_1>();
        case GGML_TYPE_MXFP4:   return kernel<plain::mxfp4>();
        case GGML_TYPE_NVFP4:   return kernel<plain::nvfp4>();
        case GGML_TYPE_Q1_0:    return kernel<plain::q1_0>();
        case GGML_TYPE_Q2_0:    return kernel<plain::q2_0>();
        case GGML_TYPE_TQ1_0:   return kernel<plain::tq1_0>();
        case GGML_TYPE_TQ2_0:   return kernel<plain::tq2_0>();
        case GGML_TYPE_IQ1_S:   return kernel<plain::iq1_s>();
        case GGML_TYPE_IQ1_M:   return kernel<plain::iq1_m>();
        case GGML_TYPE_IQ2_XXS: return kernel<plain::iq2_xxs>();
        case GGML_TYPE_IQ2_XS:  return kernel<plain::iq2_xs>();
        case GGML_TYPE_IQ2_S:   return kernel<plain::iq2_s>();
        case GGML_TYPE_IQ3_XXS: return kernel<plain::iq3_xxs>();
        case GGML_TYPE_IQ3_S:   return kernel<plain::iq3_s>();
#endif
        default:                return nullptr;
    }
}

}  // namespace pymtp

#endif
