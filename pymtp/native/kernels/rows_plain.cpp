// The kernels of rows.h for weights that lie as in the file.

#include "rows_plain_prepare.h"
#include "rows_q4_K_i8mm.h"
#include "rows_q6_K_i8mm.h"

#include <algorithm>

namespace pymtp {

#ifdef PYMTP_ROWS_SIMD
// For any number of rows: on Zen 5, 16 to 512 rows take 0.3 to 0.95 of the time of llama.cpp's tiles and of
// llamafile_sgemm, with AVX-512 as with AVX2.
template <typename L> static const rows_kernel * kernel() {
    static const rows_kernel it = {1, plain::prepared_size, plain::prepare<L>, plain::multiply<L>, INT64_MAX};
    return &it;
}
#endif

// llama.cpp's products of single rows, for types that it multiplies by tiles from some number of rows on: tiles add up
// otherwise. On x86 it does so from 8 rows on; with ARM's dot products from 2 on in llamafile_sgemm, with its products of
// matrices (i8mm) in pairs of rows. There only matrices that it does not repack come here, such as those with an odd number of
// rows.
template <ggml_type T, int64_t MOST = 65> struct single_rows {
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
        static const rows_kernel it = {1, prepared_size, prepare, multiply, MOST};
        return &it;
    }
};

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
// llama.cpp's products of pairs of rows, which add each row up alike: one without another is paired with itself. That costs
// nothing where both kinds of products take two blocks at once. A single row of Q4_K would take 1.7 times as long.
template <ggml_type T> struct pairs_of_rows : single_rows<T> {
    // Prepared rows lie in the order of x.
    static void multiply(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
        const ggml_vec_dot_t vec_dot = single_rows<T>::traits()->vec_dot;
        for (int64_t i = 0; i < m; i += 2) {
            const int64_t i1 = std::min(i + 1, m - 1);
            for (int64_t r = 0; r < n; r += 2) {
                const int64_t r1 = std::min(r + 1, n - 1);
                float products[4];
                vec_dot(k, products, 2, w + i*stride, (i1 - i)*stride, x[r], x[r1] - x[r], 2);
                y[r][i]   = products[0];
                y[r][i1]  = products[1];
                y[r1][i]  = products[2];
                y[r1][i1] = products[3];
            }
        }
    }

    static const rows_kernel * kernel() {
        static const rows_kernel it = {1, single_rows<T>::prepared_size, single_rows<T>::prepare, multiply, INT64_MAX};
        return &it;
    }
};

// Products of pairs of rows of our own, with the bits of single rows.
template <ggml_type T, typename Q> struct own_pairs : single_rows<T> {
    static const rows_kernel * kernel() {
        static const rows_kernel it = {1, single_rows<T>::prepared_size, single_rows<T>::prepare, i8mm::multiply<Q>, INT64_MAX};
        return &it;
    }
};
#endif

#if defined(PYMTP_ROWS_512) && defined(PYMTP_ROWS_VNNI)
// Rows of Q8_0 from this length on are streams that the hardware foresees: single rows from memory take 0.9 to 1 of the time
// by the units of rows_plain.h, shorter ones 1.4 to 1.5 times as long (Zen 5, 1024 to 3584 and 576 to 640 elements).
constexpr int64_t LONG = 768;
#endif

const rows_kernel * plain_kernel_of(const ggml_tensor * weights) {
    if (weights->extra) {
        return nullptr;  // another layout
    }
    switch (weights->type) {
#if defined(PYMTP_ROWS_SIMD)
        case GGML_TYPE_Q4_0:    return kernel<plain::q4_0>();
#if defined(PYMTP_ROWS_512) && defined(PYMTP_ROWS_VNNI)
        case GGML_TYPE_Q8_0:    return weights->ne[0] < LONG ? &rows_q8_0 : kernel<plain::q8_0>();
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
#elif defined(__AVX__)
        case GGML_TYPE_Q2_K:    return single_rows<GGML_TYPE_Q2_K>::kernel();
        case GGML_TYPE_Q3_K:    return single_rows<GGML_TYPE_Q3_K>::kernel();
        case GGML_TYPE_Q4_K:    return single_rows<GGML_TYPE_Q4_K>::kernel();
        case GGML_TYPE_Q5_K:    return single_rows<GGML_TYPE_Q5_K>::kernel();
        case GGML_TYPE_Q6_K:    return single_rows<GGML_TYPE_Q6_K>::kernel();
        case GGML_TYPE_IQ4_XS:  return single_rows<GGML_TYPE_IQ4_XS>::kernel();
#endif
#if defined(__AVX__)
        case GGML_TYPE_IQ1_S:   return single_rows<GGML_TYPE_IQ1_S>::kernel();
        case GGML_TYPE_IQ1_M:   return single_rows<GGML_TYPE_IQ1_M>::kernel();
        case GGML_TYPE_IQ2_XXS: return single_rows<GGML_TYPE_IQ2_XXS>::kernel();
        case GGML_TYPE_IQ2_XS:  return single_rows<GGML_TYPE_IQ2_XS>::kernel();
        case GGML_TYPE_IQ2_S:   return single_rows<GGML_TYPE_IQ2_S>::kernel();
        case GGML_TYPE_IQ3_XXS: return single_rows<GGML_TYPE_IQ3_XXS>::kernel();
        case GGML_TYPE_IQ3_S:   return single_rows<GGML_TYPE_IQ3_S>::kernel();
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
        case GGML_TYPE_Q4_0:    return pairs_of_rows<GGML_TYPE_Q4_0>::kernel();
        case GGML_TYPE_Q4_1:    return pairs_of_rows<GGML_TYPE_Q4_1>::kernel();
        case GGML_TYPE_Q8_0:    return pairs_of_rows<GGML_TYPE_Q8_0>::kernel();
        case GGML_TYPE_Q4_K:    return own_pairs<GGML_TYPE_Q4_K, i8mm::q4_K>::kernel();
        case GGML_TYPE_Q6_K:    return own_pairs<GGML_TYPE_Q6_K, i8mm::q6_K>::kernel();
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
        case GGML_TYPE_Q4_0:    return single_rows<GGML_TYPE_Q4_0, INT64_MAX>::kernel();
        case GGML_TYPE_Q8_0:    return single_rows<GGML_TYPE_Q8_0, INT64_MAX>::kernel();
#endif
        default:                return nullptr;
    }
}

}  // namespace pymtp
