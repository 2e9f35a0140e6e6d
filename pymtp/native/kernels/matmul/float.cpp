// MUL_MAT with F32, F16 and BF16 weights, for the rows of activations that llama.cpp does not multiply with
// llamafile_sgemm, on x86 with AVX2 and 64-bit ARM.
//
// A verification of drafts multiplies several rows, plain decoding one row, and a row must have the same bits in both.
// llamafile_sgemm multiplies two rows or more, and adds up each product in one vector. For a single row, and for rows
// with gaps between them, llama.cpp uses ggml_vec_dot, which adds up in several vectors. Here these rows are added up
// in the order of llamafile/sgemm.cpp (tinyBLAS::gemm_bloc), which depends only on the length of the row. On ARM, the
// number of rows that llamafile_sgemm needs differs by type, so all rows are multiplied here, four at a time.

#include "kernels.h"
#include "ops.h"
#include "simd-mappings.h"
#include "simd.h"

#include <algorithm>

namespace pymtp {

#if defined(GGML_USE_LLAMAFILE) && defined(__aarch64__) && defined(__ARM_NEON) && !defined(_MSC_VER)
#define PYMTP_FLOAT_NEON
#endif

#if defined(GGML_USE_LLAMAFILE) && (defined(PYMTP_AVX2) || defined(PYMTP_FLOAT_NEON))

// Computes y[i], the dot product of row i of the weights `a` and the row x of activations. m: number of rows of the
// weights, which are nb bytes apart. k: number of elements in a row.
typedef void (*multiply_row_fn)(int64_t m, int64_t k, const char * a, size_t nb, const char * x, float * y);

// The vector operations of llamafile/sgemm.cpp: load() loads a vector, mad() multiplies and adds, sum() adds up the
// lanes.
#if defined(PYMTP_FLOAT_NEON)
typedef float32x4_t vec;

static inline vec load(const float       * x) { return vld1q_f32(x); }
static inline vec zero()                      { return vdupq_n_f32(0.0f); }
static inline vec mad (vec a, vec b, vec c)   { return vfmaq_f32(c, b, a); }
static inline float sum(vec x)                { return vaddvq_f32(x); }
#else
typedef simd::fvec vec;

static inline vec load(const float       * x) { return simd::fload(x); }
static inline vec load(const ggml_fp16_t * x) { return simd::fload_half(x); }
static inline vec zero()                      { return simd::fzero(); }
static inline vec mad (vec a, vec b, vec c)   { return simd::fma(a, b, c); }
static inline float sum(vec x)                { return simd::fsum(x); }
#endif

// The number of elements that load() loads.
template <typename T> static constexpr int64_t load_size = sizeof(vec)/sizeof(float);

// The types of the activations and of the sums, for weights of type T.
template <typename T> struct operands {
    typedef T   activation;
    typedef vec sums;

    static sums none() { return zero(); }
};

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) && defined(PYMTP_FLOAT_NEON)
template <> constexpr int64_t load_size<ggml_fp16_t> = 8;

template <> struct operands<ggml_fp16_t> {
    typedef ggml_fp16_t activation;
    typedef float16x8_t sums;

    static sums none() { return vdupq_n_f16(0.0f); }
};
static inline float16x8_t load(const ggml_fp16_t * x) { return vld1q_f16((const float16_t *) x); }
static inline float16x8_t mad(float16x8_t a, float16x8_t b, float16x8_t c) { return vfmaq_f16(c, b, a); }
static inline float sum(float16x8_t x) {
    return vaddvq_f32(vaddq_f32(vcvt_f32_f16(vget_low_f16(x)), vcvt_f32_f16(vget_high_f16(x))));
}
#elif defined(PYMTP_FLOAT_NEON)
template <> struct operands<ggml_fp16_t> {
    typedef float activation;
    typedef vec   sums;

    static sums none() { return zero(); }
};
static inline vec load(const ggml_fp16_t * x) { return vcvt_f32_f16(vld1_f16((const float16_t *) x)); }
#endif

#if defined(__AVX512BF16__)
template <> constexpr int64_t load_size<ggml_bf16_t> = 32;

static inline __m512bh load(const ggml_bf16_t * x)     { return (__m512bh) _mm512_loadu_ps((const float *) x); }
static inline vec mad(__m512bh a, __m512bh b, vec c)   { return _mm512_dpbf16_ps(c, a, b); }
#elif defined(PYMTP_AVX512)
static inline vec load(const ggml_bf16_t * x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) x)), 16));
}
#elif defined(PYMTP_AVX2)
static inline vec load(const ggml_bf16_t * x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) x)), 16));
}
#endif

// Multiplies N rows of the weights, which are `step` rows apart, by the row x of activations.
template <typename T, int N>
static void dot_rows(
        int64_t k, const char * a, size_t nb, int64_t step, const typename operands<T>::activation * x, float * y) {
    typename operands<T>::sums c[N];
    for (int i = 0; i < N; ++i) {
        c[i] = operands<T>::none();
    }
    for (int64_t l = 0; l < k; l += load_size<T>) {
        const auto xl = load(x + l);
        for (int i = 0; i < N; ++i) {
            const T * ai = (const T *) (a + i*step*nb) + l;
#if !defined(PYMTP_FLOAT_NEON)
            if (N > 2) {
                _mm_prefetch((const char *) ai + 2048, _MM_HINT_T0);
            }
#endif
            c[i] = mad(load(ai), xl, c[i]);
        }
    }
    for (int i = 0; i < N; ++i) {
        y[i*step] = sum(c[i]);
    }
}

template <typename T>
static void multiply_row(int64_t m, int64_t k, const char * a, size_t nb, const char * x, float * y) {
    // N rows of the weights are multiplied at once. They are far apart (m/N rows), so that each is in a long stream:
    // the hardware does not prefetch several short streams in one page. N is larger where load() converts elements,
    // because each load of x then serves more rows of the weights.
#if defined(PYMTP_FLOAT_NEON)
    constexpr int N = 4;
#else
    constexpr int N = sizeof(T) < sizeof(float) ? 4 : 2;
#endif
    typedef typename operands<T>::activation X;

    const int64_t step = m/N;
    for (int64_t i = 0; i < step; ++i) {
        dot_rows<T, N>(k, a + i*nb, nb, step, (const X *) x, y + i);
    }
    for (int64_t i = N*step; i < m; ++i) {
        dot_rows<T, 1>(k, a + i*nb, nb, 1, (const X *) x, y + i);
    }
}

#if defined(PYMTP_FLOAT_NEON)
// Multiplies R rows of activations at once, so that each load of weights serves R rows. Each row has the same bits as a
// row that is multiplied alone.
template <typename T, int R>
static void multiply_rows(int64_t m, int64_t k, const char * a, size_t nb, const char * const * x, float * const * y) {
    typedef typename operands<T>::activation X;
    constexpr int N = 4;

    int64_t i = 0;
    for (; i + N <= m; i += N) {
        typename operands<T>::sums c[R][N];
        for (int j = 0; j < R; ++j) {
            for (int r = 0; r < N; ++r) {
                c[j][r] = operands<T>::none();
            }
        }
        for (int64_t l = 0; l < k; l += load_size<T>) {
            typename operands<T>::sums w[N];
            for (int r = 0; r < N; ++r) {
                w[r] = load((const T *) (a + (i + r)*nb) + l);
            }
            for (int j = 0; j < R; ++j) {
                const auto xl = load((const X *) x[j] + l);
                for (int r = 0; r < N; ++r) {
                    c[j][r] = mad(w[r], xl, c[j][r]);
                }
            }
        }
        for (int j = 0; j < R; ++j) {
            for (int r = 0; r < N; ++r) {
                y[j][i + r] = sum(c[j][r]);
            }
        }
    }
    for (; i < m; ++i) {
        for (int j = 0; j < R; ++j) {
            dot_rows<T, 1>(k, a + i*nb, nb, 1, (const X *) x[j], y[j] + i);
        }
    }
}
#endif

// Returns the function that multiplies a row of k elements by weights of this type, or nullptr if llamafile_sgemm does
// not support the type or the length.
static multiply_row_fn multiply_row_for(ggml_type type, int64_t k) {
    switch (type) {
        case GGML_TYPE_F32:  return k%load_size<float>       == 0 ? multiply_row<float>       : nullptr;
        case GGML_TYPE_F16:  return k%load_size<ggml_fp16_t> == 0 ? multiply_row<ggml_fp16_t> : nullptr;
#if defined(PYMTP_AVX2)
        case GGML_TYPE_BF16: return k%load_size<ggml_bf16_t> == 0 ? multiply_row<ggml_bf16_t> : nullptr;
#endif
        default:             return nullptr;
    }
}

// Returns the type that activations must have for weights of this type.
static ggml_type activations_type(ggml_type type) {
    return type == GGML_TYPE_F16 && sizeof(operands<ggml_fp16_t>::activation) == sizeof(float) ? GGML_TYPE_F32 : type;
}

// Returns row ir of the activations, of the type activations_type(): the row of src1 if that has this type, else the
// copy that convert_activations() made in the work space.
static const char * activation_row(const ggml_compute_params * params, const ggml_tensor * dst, int64_t ir) {
    const ggml_tensor * src1 = dst->src[1];
    const ggml_type     type = activations_type(dst->src[0]->type);

    return src1->type == type ? row_at(src1, ir) : (char *) params->wdata + ir*ggml_row_size(type, src1->ne[0]);
}

// Copies src1 to the work space, converted to activations_type(). Each thread converts a part of each row.
static void convert_activations(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * src1 = dst->src[1];
    const ggml_type     type = activations_type(dst->src[0]->type);

    const int64_t i0 = src1->ne[0]* params->ith     /params->nth;
    const int64_t n  = src1->ne[0]*(params->ith + 1)/params->nth - i0;

    for (int64_t ir = 0; ir < ggml_nrows(src1); ++ir) {
        const char * x = row_at(src1, ir) + i0*src1->nb[0];
        char       * y = (char *) activation_row(params, dst, ir) + i0*ggml_type_size(type);

        switch (src1->type) {
            case GGML_TYPE_F16:  ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) x, (float *) y, n);      break;
            case GGML_TYPE_BF16: ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) x, (float *) y, n);      break;
            default:             ggml_get_type_traits_cpu(type)->from_float((const float *) x, y, n); break;
        }
    }
}

bool compute_mul_mat_float(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    GGML_TENSOR_BINARY_OP_LOCALS

    const multiply_row_fn multiply_row = multiply_row_for(src0->type, ne00);

    // Weights with `extra` have another layout (AMX), and llama.cpp multiplies by a Hadamard matrix without reading the
    // matrix.
    if (!multiply_row || src0->extra || ggml_get_op_params_i32(dst, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return false;
    }
    const ggml_type type = activations_type(src0->type);

#if !defined(PYMTP_FLOAT_NEON)
    // llama.cpp multiplies several rows without gaps with llamafile_sgemm.
    const bool gaps = src1->type == type && !ggml_is_contiguous(src1);
    if (ne11 > 1 && ne01 % 4 == 0 && !gaps) {
        return false;
    }
#endif
    // Other types of src1 are only supported where llama.cpp converts them: F32 to the type of the weights, and F16 and
    // BF16 to F32.
    if (src1->type != type && src1->type != GGML_TYPE_F32 &&
            (src0->type != GGML_TYPE_F32 || (src1->type != GGML_TYPE_F16 && src1->type != GGML_TYPE_BF16))) {
        return false;
    }
    if (nb00 != ggml_type_size(src0->type) || nb10 != ggml_type_size(src1->type) || nb0 != sizeof(float)) {
        return false;
    }

    if (src1->type != type) {
        convert_activations(params, dst);
    }
    // The work is split into pieces by rows of the weights and by rows of activations, as in
    // ggml_compute_forward_mul_mat.
    const int64_t nth  = params->nth;
    const int64_t nr1  = ne1*ne2*ne3;
    const int64_t size = ne0 == 1 || nr1 == 1 ? 64 : 16;

    int64_t n0 = (ne0 + size - 1)/size;
    int64_t n1 = (nr1 + size - 1)/size;
    if (n0*n1 < nth*4 || ggml_is_numa()) {
        n0 = ne0 > nr1 ? nth : 1;
        n1 = ne0 > nr1 ? 1 : nth;
    }
    const int64_t dr0 = (ne0 + n0 - 1)/n0;
    const int64_t dr1 = (nr1 + n1 - 1)/n1;

    share_out(params, n0*n1, [&](int64_t i) {
        const int64_t ir0 = dr0*(i%n0);
        const int64_t m   = std::min(dr0, ne0 - ir0);
        const int64_t end = std::min(dr1*(i/n0 + 1), nr1);

        for (int64_t ir1 = dr1*(i/n0); m > 0 && ir1 < end; ++ir1) {
            const int64_t i2 = ir1/ne1%ne2;
            const int64_t i3 = ir1/ne1/ne2;
            const char *  w  = (const char *) src0->data + ir0*nb01 + i2/(ne12/ne02)*nb02 + i3/(ne13/ne03)*nb03;
            const auto    y  = [&](int64_t ir) { return (float *) row_at(dst, ir) + ir0; };
#if defined(PYMTP_FLOAT_NEON)
            constexpr int R = 4;
            if (ir1%ne1 + R <= ne1 && ir1 + R <= end) {
                const char * x[R];
                float      * ys[R];
                for (int j = 0; j < R; ++j) {
                    x[j]  = activation_row(params, dst, ir1 + j);
                    ys[j] = y(ir1 + j);
                }
                if (src0->type == GGML_TYPE_F32) {
                    multiply_rows<float, R>(m, ne00, w, nb01, x, ys);
                } else {
                    multiply_rows<ggml_fp16_t, R>(m, ne00, w, nb01, x, ys);
                }
                ir1 += R - 1;
                continue;
            }
#endif
            multiply_row(m, ne00, w, nb01, activation_row(params, dst, ir1), y(ir1));
        }
    });
    return true;
}

#else

bool compute_mul_mat_float(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

#endif

}  // namespace pymtp
