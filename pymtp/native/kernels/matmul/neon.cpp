// Chooses the kernel for weights in the layout of the GGUF file on 64-bit ARM.

#include "matmul/neon_codebooks.h"

#ifdef __aarch64__

namespace pymtp {

// Multiplies row by row with llama.cpp's vec_dot, as llama.cpp does with a single row. Some types need this, because
// llama.cpp multiplies several rows in another way, which adds up in another order: with dot products by
// llamafile_sgemm, from 2 rows on; with i8mm in pairs of rows. This kernel is only used for matrices that llama.cpp
// does not repack, such as matrices with an odd number of rows.
template <ggml_type T> struct row_by_row {
    static const ggml_type_traits_cpu * traits() { return ggml_get_type_traits_cpu(T); }

    static size_t prepared_size(int64_t k) {
        return ggml_row_size(traits()->vec_dot_type, k);
    }

    static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
        const ggml_type type = traits()->vec_dot_type;
        ggml_get_type_traits_cpu(type)->from_float(x + k0, prepared + ggml_row_size(type, k0), k1 - k0);
    }

    static void multiply(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
        const ggml_vec_dot_t vec_dot = traits()->vec_dot;
        for (int64_t i = 0; i < m; ++i) {
            for (int64_t r = 0; r < n; ++r) {
                vec_dot(k, y[r] + i, 0, w + i*stride, 0, x[r], 0, 1);
            }
        }
    }

    static const rows_kernel * kernel() {
        static const rows_kernel it = {1, prepared_size, prepare, multiply, INT64_MAX};
        return &it;
    }
};

// The kernel of neon.h is used for any number of rows: for more than one, it takes less time than llama.cpp, which
// multiplies these types row by row.
template <typename L> static const rows_kernel * kernel() {
    static const rows_kernel it = {1, neon::prepared_size<L>, neon::prepare<L>, neon::multiply<L>, INT64_MAX};
    return &it;
}

const rows_kernel * plain_kernel_of(const ggml_tensor * weights) {
    if (weights->extra) {
        return nullptr;  // the weights have another layout
    }
    switch (weights->type) {
        case GGML_TYPE_Q4_0:    return row_by_row<GGML_TYPE_Q4_0>::kernel();
        case GGML_TYPE_Q8_0:    return row_by_row<GGML_TYPE_Q8_0>::kernel();
        case GGML_TYPE_Q4_K:    return row_by_row<GGML_TYPE_Q4_K>::kernel();
        case GGML_TYPE_Q6_K:    return row_by_row<GGML_TYPE_Q6_K>::kernel();
        case GGML_TYPE_Q2_K:    return kernel<neon::q2_k>();
        case GGML_TYPE_Q3_K:    return kernel<neon::q3_k>();
        case GGML_TYPE_IQ4_XS:  return kernel<neon::iq4_xs>();
        case GGML_TYPE_Q4_1:    return kernel<neon::q4_1>();
        case GGML_TYPE_Q5_0:    return kernel<neon::q5_0>();
        case GGML_TYPE_Q5_1:    return kernel<neon::q5_1>();
        case GGML_TYPE_MXFP4:   return kernel<neon::mxfp4>();
        case GGML_TYPE_NVFP4:   return kernel<neon::nvfp4>();
        case GGML_TYPE_Q1_0:    return kernel<neon::q1_0>();
        case GGML_TYPE_Q2_0:    return kernel<neon::q2_0>();
        case GGML_TYPE_TQ1_0:   return kernel<neon::tq1_0>();
        case GGML_TYPE_TQ2_0:   return kernel<neon::tq2_0>();
        case GGML_TYPE_IQ1_S:   return kernel<neon::iq1_s>();
        case GGML_TYPE_IQ1_M:   return kernel<neon::iq1_m>();
        case GGML_TYPE_IQ2_XXS: return kernel<neon::iq2_xxs>();
        case GGML_TYPE_IQ2_XS:  return kernel<neon::iq2_xs>();
        case GGML_TYPE_IQ2_S:   return kernel<neon::iq2_s>();
        case GGML_TYPE_IQ3_XXS: return kernel<neon::iq3_xxs>();
        case GGML_TYPE_IQ3_S:   return kernel<neon::iq3_s>();
        default:                return nullptr;
    }
}

}  // namespace pymtp

#endif
