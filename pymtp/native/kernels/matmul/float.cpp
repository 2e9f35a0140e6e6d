// MUL_MAT with F32, F16 and BF16 weights, on x86 with AVX2 and 64-bit ARM.
//
// A verification of drafts multiplies several rows, plain decoding one row, and a row must have the same bits in both.
// llamafile_sgemm multiplies two rows or more, and adds up each product in one vector. For a single row, and for rows
// with gaps between them, llama.cpp uses ggml_vec_dot, which adds up in several vectors. Here rows are added up in the
// order of llamafile/sgemm.cpp (tinyBLAS::gemm_bloc), which depends only on the length of the row. On x86,
// llamafile_sgemm still multiplies the many rows of a prompt. With few rows it is slower, because it reads the weights
// in short streams. On ARM, the number of rows that llamafile_sgemm needs differs by type, so all rows are multiplied
// here.

#include "kernels.h"
#include "ops.h"
#include "simd-mappings.h"
#include "simd.h"

#include <algorithm>
#include <type_traits>

namespace pymtp {

#if defined(GGML_USE_LLAMAFILE) && defined(__aarch64__) && defined(__ARM_NEON) && !defined(_MSC_VER)
#define PYMTP_FLOAT_NEON
#endif

#if defined(GGML_USE_LLAMAFILE) && (defined(PYMTP_AVX2) || defined(PYMTP_FLOAT_NEON))

// Rows of activations that are multiplied at once. On x86, llamafile_sgemm multiplies more.
static constexpr int MAX_ROWS = 16;

struct several_rows {
    int          n;
    const char * x[MAX_ROWS];  // the activations of each row
    float      * y[MAX_ROWS];  // the results of each row
};

// Computes y[j][i], the dot product of row i of the weights `a` and the activations x[j]. m: number of rows of the
// weights, which are nb bytes apart. k: number of elements in a row.
typedef void (*multiply_rows_fn)(int64_t m, int64_t k, const char * a, size_t nb, const several_rows & r);

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

// Multiplies N rows of the weights, which are `step` rows apart, by R rows of activations, from row j0 of `r` on. The
// first row of the weights is row i0. The bits of a row do not depend on N and R.
template <typename T, int N, int R>
static void dot_rows(int64_t k, const char * a, size_t nb, int64_t i0, int64_t step, const several_rows & r, int j0) {
    typedef typename operands<T>::activation X;

    typename operands<T>::sums c[R][N];
    for (int j = 0; j < R; ++j) {
        for (int i = 0; i < N; ++i) {
            c[j][i] = operands<T>::none();
        }
    }
    for (int64_t l = 0; l < k; l += load_size<T>) {
        decltype(load((const T *) a)) w[N];
        for (int i = 0; i < N; ++i) {
            const T * ai = (const T *) (a + (i0 + i*step)*nb) + l;
#if !defined(PYMTP_FLOAT_NEON)
            if (N > 2 || R > 1) {
                _mm_prefetch((const char *) ai + 2048, _MM_HINT_T0);
            }
#endif
            w[i] = load(ai);
        }
        for (int j = 0; j < R; ++j) {
            const auto x = load((const X *) r.x[j0 + j] + l);
            for (int i = 0; i < N; ++i) {
                c[j][i] = mad(w[i], x, c[j][i]);
            }
        }
    }
    for (int j = 0; j < R; ++j) {
        for (int i = 0; i < N; ++i) {
            r.y[j0 + j][i0 + i*step] = sum(c[j][i]);
        }
    }
}

// Does the same with n rows of activations, at most R.
template <typename T, int N, int R>
static void dot_rows_up_to(
        int n, int64_t k, const char * a, size_t nb, int64_t i0, int64_t step, const several_rows & r, int j0) {
    if constexpr (R > 1) {
        if (n < R) {
            return dot_rows_up_to<T, N, R - 1>(n, k, a, nb, i0, step, r, j0);
        }
    }
    dot_rows<T, N, R>(k, a, nb, i0, step, r, j0);
}

// Multiplies N rows of the weights at once by up to R rows of activations. Further activations read the weights
// from the cache.
template <typename T, int N, int R>
static void multiply_blocks(int64_t m, int64_t k, const char * a, size_t nb, const several_rows & r) {
    const int n_parts = (r.n + R - 1)/R;

    const auto multiply = [&](auto n_weights, int64_t i0, int64_t step) {
        for (int part = 0; part < n_parts; ++part) {
            const int j0 = r.n*part/n_parts;
            dot_rows_up_to<T, decltype(n_weights)::value, R>(
                    r.n*(part + 1)/n_parts - j0, k, a, nb, i0, step, r, j0);
        }
    };
    // The rows of the weights that are multiplied at once are far apart (m/N rows), so that each is in a long stream:
    // the hardware does not prefetch several short streams in one page.
    const int64_t step = m/N;
    for (int64_t i = 0; i < step; ++i) {
        multiply(std::integral_constant<int, N>(), i, step);
    }
    for (int64_t i = N*step; i < m; ++i) {
        multiply(std::integral_constant<int, 1>(), i, 1);
    }
}

template <typename T>
static void multiply_rows(int64_t m, int64_t k, const char * a, size_t nb, const several_rows & r) {
    // Sums, weights and an activation must fit into the registers. A single row of activations has more rows of weights
    // where load() converts elements, because each load of x then serves more of them.
#if defined(PYMTP_FLOAT_NEON)
    multiply_blocks<T, 4, 4>(m, k, a, nb, r);
#else
    constexpr int R = sizeof(vec) == 64 ? 8 : 4;
    if (r.n > 1) {
        multiply_blocks<T, 3, R>(m, k, a, nb, r);
    } else {
        multiply_blocks<T, sizeof(T) < sizeof(float) ? 4 : 2, 1>(m, k, a, nb, r);
    }
#endif
}

// Returns the function that multiplies rows of k elements by weights of this type, or nullptr if llamafile_sgemm does
// not support the type or the length.
static multiply_rows_fn multiply_rows_for(ggml_type type, int64_t k) {
    switch (type) {
        case GGML_TYPE_F32:  return k%load_size<float>       == 0 ? multiply_rows<float>       : nullptr;
        case GGML_TYPE_F16:  return k%load_size<ggml_fp16_t> == 0 ? multiply_rows<ggml_fp16_t> : nullptr;
#if defined(PYMTP_AVX2)
        case GGML_TYPE_BF16: return k%load_size<ggml_bf16_t> == 0 ? multiply_rows<ggml_bf16_t> : nullptr;
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

    const multiply_rows_fn multiply_rows = multiply_rows_for(src0->type, ne00);

    // Weights with `extra` have another layout (AMX), and llama.cpp multiplies by a Hadamard matrix without reading the
    // matrix.
    if (!multiply_rows || src0->extra || ggml_get_op_params_i32(dst, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return false;
    }
    const ggml_type type = activations_type(src0->type);

#if !defined(PYMTP_FLOAT_NEON)
    // llama.cpp multiplies many rows without gaps with llamafile_sgemm.
    const bool gaps = src1->type == type && !ggml_is_contiguous(src1);
    if (ne11 > MAX_ROWS && ne01 % 4 == 0 && !gaps) {
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
    // ggml_compute_forward_mul_mat. Pieces with more rows of the weights are longer streams.
    const int64_t nth  = params->nth;
    const int64_t nr1  = ne1*ne2*ne3;
    const int64_t size = ne0 == 1 || nr1 <= MAX_ROWS ? 64 : 16;

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

        for (int64_t ir1 = dr1*(i/n0); m > 0 && ir1 < end;) {
            const int64_t i2 = ir1/ne1%ne2;
            const int64_t i3 = ir1/ne1/ne2;
            const char *  w  = (const char *) src0->data + ir0*nb01 + i2/(ne12/ne02)*nb02 + i3/(ne13/ne03)*nb03;

            several_rows r;
            r.n = std::min<int64_t>({MAX_ROWS, end - ir1, ne1 - ir1%ne1});  // rows that have these weights
            for (int j = 0; j < r.n; ++j) {
                r.x[j] = activation_row(params, dst, ir1 + j);
                r.y[j] = (float *) row_at(dst, ir1 + j) + ir0;
            }
            multiply_rows(m, ne00, w, nb01, r);
            ir1 += r.n;
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
