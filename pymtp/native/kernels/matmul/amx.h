// MUL_MAT of 2 to 8 rows with weights in an AMX buffer, with AVX-512 VNNI. llama.cpp's amx/mmq.cpp includes this file,
// because the kernels use the types, the dispatch and the layout of the weights that are defined there.
//
// llama.cpp multiplies two or more rows in AMX tiles of 16 rows. In a verification of drafts the tiles are almost
// empty, but take as long as full ones: each block of weights is unpacked to memory and loaded as a tile, and its sums
// are stored and loaded again. So two rows take twice as long as a single row, for which llama.cpp has a VNNI kernel
// that is as fast as the memory. Here the weights are unpacked into registers once for all rows, and the sums C stay in
// registers: two or three rows take little longer than one row, eight rows twice as long. A row takes the same steps as
// in tinygemm_kernel_vnni, llama.cpp's kernel for single rows, so it has the same bits. There is no kernel for Q4_1
// here: llama.cpp multiplies it in tiles.

#pragma once

#include "kernels.h"

#include "ggml-backend-impl.h"

namespace {

// unpack() unpacks a group of weights to n vectors of unsigned bytes: 4*n consecutive weights of each of 16 rows. Each
// byte is the weight plus zero_point.
template <typename TB> struct few_rows_group {};

template <> struct few_rows_group<block_q4_0> {
    static constexpr int n          = 8;
    static constexpr int zero_point = 8;
    static ALWAYS_INLINE void unpack(const char * B, int, __m512i * vb) {
        const __m512i lowMask = _mm512_set1_epi8(0xF);
        for (int k = 0; k < n; k += 2) {
            const __m512i bytes = _mm512_loadu_si512(B + k*32);
            vb[k + 0] = _mm512_and_si512(bytes, lowMask);
            vb[k + 1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), lowMask);
        }
    }
};

template <> struct few_rows_group<block_q8_0> {
    static constexpr int n          = 8;
    static constexpr int zero_point = 128;
    static ALWAYS_INLINE void unpack(const char * B, int, __m512i * vb) {
        const __m512i off = _mm512_set1_epi8(static_cast<char>(0x80));
        for (int k = 0; k < n; ++k) {
            vb[k] = _mm512_xor_si512(_mm512_loadu_si512(B + k*64), off);
        }
    }
};

template <> struct few_rows_group<block_q4_K> {
    static constexpr int n          = 8;
    static constexpr int zero_point = 0;
    static ALWAYS_INLINE void unpack(const char * B, int group, __m512i * vb) {
        few_rows_group<block_q4_0>::unpack(B + group*n*32, 0, vb);
    }
};

template <> struct few_rows_group<block_q5_K> {
    static constexpr int n          = 8;
    static constexpr int zero_point = 0;
    static ALWAYS_INLINE void unpack(const char * B, int group, __m512i * vb) {
        few_rows_group<block_q4_K>::unpack(B, group, vb);
        const __m512i bits = _mm512_loadu_si512(B + (QK_K/2)*TILE_N + group*64);
        for (int k = 0; k < n; ++k) { // bit k of each byte of `bits` becomes bit 4 of vb[k]
            const __m512i bit = _mm512_and_si512(bits, _mm512_set1_epi8(static_cast<char>(1 << k)));
            vb[k] = _mm512_or_si512(vb[k], k < 4 ? _mm512_slli_epi16(bit, 4 - k) : _mm512_srli_epi16(bit, k - 4));
        }
    }
};

template <> struct few_rows_group<block_q6_K> {
    static constexpr int n          = 4;
    static constexpr int zero_point = 32;
    static ALWAYS_INLINE void unpack(const char * B, int group, __m512i * vb) {
        const __m512i lowMask = _mm512_set1_epi8(0xF);
        const __m512i bits    = _mm512_loadu_si512(B + (QK_K/2)*TILE_N + group*64);
        for (int k = 0; k < n; k += 2) {
            const __m512i bytes = _mm512_loadu_si512(B + (group*n + k)*32);
            vb[k + 0] = _mm512_and_si512(bytes, lowMask);
            vb[k + 1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), lowMask);
        }
        for (int k = 0; k < n; ++k) { // bits 2*k and 2*k + 1 of `bits` become bits 4 and 5 of vb[k]
            const __m512i two = _mm512_and_si512(bits, _mm512_set1_epi8(static_cast<char>(3 << 2*k)));
            vb[k] = _mm512_or_si512(vb[k], k < 2 ? _mm512_slli_epi16(two, 4 - 2*k) : _mm512_srli_epi16(two, 2*k - 4));
        }
    }
};

template <> struct few_rows_group<block_iq4_xs> {
    static constexpr int n          = 8;
    static constexpr int zero_point = 128;
    static ALWAYS_INLINE void unpack(const char * B, int group, __m512i * vb) {
        const __m512i values = _mm512_xor_si512(_mm512_set1_epi8(static_cast<char>(0x80)), _mm512_broadcast_i32x4(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)));
        few_rows_group<block_q4_K>::unpack(B, group, vb);
        for (int k = 0; k < n; ++k) {
            vb[k] = _mm512_shuffle_epi8(values, vb[k]);
        }
    }
};

// The scale d of a block of a row of activations, and the block's compensation: the part of a sum of products that
// comes from zero_point.
struct few_rows_scale {
    float   d;
    int32_t comp;
};

template <typename TB>
static void few_rows_scales(const block_q8_0 * A, int KB, few_rows_scale * scales) {
    const __m512i off = _mm512_set1_epi8(static_cast<char>(few_rows_group<TB>::zero_point));
    for (int i = 0; i < KB; ++i) {
        const __m256i a = _mm256_loadu_si256((const __m256i *) A[i].qs);
        scales[i].d    = GGML_CPU_FP16_TO_FP32(A[i].d);
        scales[i].comp = _mm512_reduce_add_epi32(
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), off, _mm512_zextsi256_si512(a)));
    }
}

template <typename TB, typename TA>
static void few_rows_scales(const TA *, int, few_rows_scale *) {}

// Returns the sums of 4*n products for each of 16 rows of the weights, minus the compensation.
template <int n>
static ALWAYS_INLINE __m512i few_rows_dot(const __m512i * vb, const int8_t * a, __m512i comp) {
    __m512i sum = _mm512_setzero_si512();
    for (int k = 0; k < n; ++k) {
        int32_t a4;
        memcpy(&a4, a + 4*k, sizeof(a4));
        sum = _mm512_dpbusd_epi32(sum, vb[k], _mm512_set1_epi32(a4));
    }
    return _mm512_sub_epi32(sum, comp);
}

template <typename TA, typename TB, int ROWS, int COLS, typename std::enable_if<!is_type_qkk<TB>::value, int>::type = 0>
void tinygemm_kernel_few_rows(int KB, const TA * RESTRICT A, const few_rows_scale * RESTRICT scales,
        const char * RESTRICT B, float * RESTRICT C, int ldc) {
    using group = few_rows_group<TB>;

    const int TILE_SIZE = get_tile_size<TB>();
    const int offset_d0 = group::n*4*TILE_N/(std::is_same<TB, block_q4_0>::value ? 2 : 1);

    __m512 vc[ROWS][COLS];
    std::fill(&vc[0][0], &vc[0][0] + ROWS*COLS, _mm512_setzero_ps());
    for (int i = 0; i < KB; ++i) {
        Unroll<COLS>{}([&](auto col) {
            const char * b = B + PACKED_INDEX(col, i, KB, TILE_SIZE);

            __m512i vb[group::n];
            group::unpack(b, 0, vb);
            const __m512 vd0 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(b + offset_d0)));

            for (int r = 0; r < ROWS; ++r) {
                const __m512i sum =
                    few_rows_dot<group::n>(vb, A[r*KB + i].qs, _mm512_set1_epi32(scales[r*KB + i].comp));
                vc[r][col] = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(sum), _mm512_mul_ps(vd0, _mm512_set1_ps(scales[r*KB + i].d)), vc[r][col]);
            }
        });
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int col = 0; col < COLS; ++col) {
            _mm512_storeu_ps(C + r*ldc + col*16, vc[r][col]);
        }
    }
}

template <typename TA, typename TB, int ROWS, int COLS, typename std::enable_if<is_type_qkk<TB>::value, int>::type = 0>
void tinygemm_kernel_few_rows(int KB, const TA * RESTRICT A, const few_rows_scale *,
        const char * RESTRICT B, float * RESTRICT C, int ldc) {
    using group = few_rows_group<TB>;

    constexpr int  k_size   = 4*group::n;
    constexpr int  n_groups = QK_K/k_size;
    constexpr bool has_mins = std::is_same<TB, block_q4_K>::value || std::is_same<TB, block_q5_K>::value;

    const int TILE_SIZE     = get_tile_size<TB>();
    const int offset_scales = get_quants_size<TB>();
    const int offset_mins   = offset_scales + n_groups*TILE_N;
    const int offset_d0     = offset_mins   + (has_mins ? n_groups*TILE_N : 0);
    const int offset_dmin   = offset_d0     + TILE_N*sizeof(ggml_half);

    __m512 vc[ROWS][COLS];
    std::fill(&vc[0][0], &vc[0][0] + ROWS*COLS, _mm512_setzero_ps());
    for (int i = 0; i < KB; ++i) {
        // For each row and group: the sum of the activations (sums), and the compensation (comp).
        alignas(16) int16_t sums[ROWS][n_groups];
        int32_t comp[ROWS][n_groups];
        for (int r = 0; r < ROWS; ++r) {
            for (int k = 0; k < n_groups; ++k) {
                const int16_t * bsums = A[r*KB + i].bsums;
                sums[r][k] = k_size == 16 ? bsums[k] : bsums[2*k] + bsums[2*k + 1];
                comp[r][k] = group::zero_point*sums[r][k];
            }
        }
        Unroll<COLS>{}([&](auto col) {
            const char * b = B + PACKED_INDEX(col, i, KB, TILE_SIZE);

            __m512i acc[ROWS];
            for (int r = 0; r < ROWS; ++r) {
                acc[r] = _mm512_setzero_si512();
            }
            for (int k = 0; k < n_groups; ++k) {
                __m512i vb[group::n];
                group::unpack(b, k, vb);
                const __m512i vscale = _mm512_cvtepi8_epi32(
                    _mm_loadu_si128((const __m128i *)(b + offset_scales + k*TILE_N)));

                for (int r = 0; r < ROWS; ++r) {
                    const __m512i sum =
                        few_rows_dot<group::n>(vb, A[r*KB + i].qs + k*k_size, _mm512_set1_epi32(comp[r][k]));
                    acc[r] = _mm512_add_epi32(acc[r], _mm512_mullo_epi32(sum, vscale));
                }
            }
            const __m512 vd0 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(b + offset_d0)));
            for (int r = 0; r < ROWS; ++r) {
                vc[r][col] = _mm512_fmadd_ps(
                    _mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(vd0, _mm512_set1_ps(A[r*KB + i].d)), vc[r][col]);
            }
            if (has_mins) {
                const __m512 vdmin = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(b + offset_dmin)));
                for (int r = 0; r < ROWS; ++r) {
                    __m512i acc_m = _mm512_setzero_si512();
                    for (int k = 0; k < n_groups/2; ++k) {
                        int32_t pair;
                        memcpy(&pair, sums[r] + 2*k, sizeof(pair));
                        const __m512i vb = _mm512_cvtepi8_epi16(
                            _mm256_loadu_si256((const __m256i *)(b + offset_mins + k*32)));
                        acc_m = _mm512_dpwssds_epi32(acc_m, _mm512_set1_epi32(pair), vb);
                    }
                    vc[r][col] = _mm512_fnmadd_ps(
                        _mm512_cvtepi32_ps(acc_m), _mm512_mul_ps(vdmin, _mm512_set1_ps(A[r*KB + i].d)), vc[r][col]);
                }
            }
        });
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int col = 0; col < COLS; ++col) {
            _mm512_storeu_ps(C + r*ldc + col*16, vc[r][col]);
        }
    }
}

template <typename TA, typename TB, int ROWS>
void tinygemm_few_rows(int N, int KB, const TA * A, const few_rows_scale * scales, const char * B, float * C, int ldc) {
    // ROWS*COLS vectors of sums must fit into the registers.
    constexpr int COLS = ROWS > 4 ? 2 : 4;

    const int TILE_SIZE = get_tile_size<TB>();

    int col = 0;
    for (; col + COLS <= N/TILE_N; col += COLS) {
        tinygemm_kernel_few_rows<TA, TB, ROWS, COLS>(
            KB, A, scales, B + PACKED_INDEX(col, 0, KB, TILE_SIZE), C + col*TILE_N, ldc);
    }
    if (col < N/TILE_N) {
        tinygemm_kernel_few_rows<TA, TB, ROWS, 2>(
            KB, A, scales, B + PACKED_INDEX(col, 0, KB, TILE_SIZE), C + col*TILE_N, ldc);
    }
}

}  // namespace

namespace pymtp {

static bool is_few_rows(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    return src0->extra && src0->buffer && src0->buffer->buft == ggml_backend_amx_buffer_type() &&
        qtype_has_amx_kernels(src0->type) && src0->type != GGML_TYPE_Q4_1 && dst->ne[1] >= 2 && dst->ne[1] <= 8;
}

// Returns the offset of the scales in the work space, which holds the quantized rows, then a few_rows_scale for each
// block of each row.
static size_t few_rows_scales_offset(const ggml_tensor * dst) {
    return GGML_PAD(ggml_backend_amx_desired_wsize(dst), sizeof(few_rows_scale));
}

size_t mul_mat_amx_work_size(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    return !is_few_rows(dst) ? 0 : few_rows_scales_offset(dst) +
        ggml_nrows(dst)*(src0->ne[0]/ggml_blck_size(src0->type))*sizeof(few_rows_scale);
}

template <typename type, typename vec_dot_type, int blck_size>
static void few_rows_mul_mat(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    const int M   = dst->ne[1];
    const int N   = dst->ne[0];
    const int K   = src0->ne[0];
    const int KB  = K/blck_size;
    const int ldc = dst->nb[1]/dst->nb[0];

    const int64_t n_batch = dst->ne[2]*dst->ne[3];

    vec_dot_type   * A = (vec_dot_type *) params->wdata;
    few_rows_scale * S = (few_rows_scale *) ((char *) params->wdata + few_rows_scales_offset(dst));

    parallel_for_ggml(params, n_batch*M, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
            const int64_t offset = ggml_batch_offset(src1, i/M, dst->ne[2]) + i%M*src1->nb[1];
            from_float<vec_dot_type>(
                (const float *) ((const char *) src1->data + offset), (char *) (A + (size_t) i*KB), K);
            few_rows_scales<type>(A + (size_t) i*KB, KB, S + (size_t) i*KB);
        }
    });
    ggml_barrier(params->threadpool);

    constexpr int BLOCK_N = TILE_N*4;
    const int NB = div_up(N, BLOCK_N);

    parallel_for_ggml(params, n_batch*NB, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) {
            const int batch = i/NB;
            const int nb    = i%NB;

            const vec_dot_type   * a = A + (size_t) batch*M*KB;
            const few_rows_scale * s = S + (size_t) batch*M*KB;

            const char * b = (const char *) src0->data + ggml_batch_offset(src0, batch, dst->ne[2]);
            float      * c = (float *) ((char *) dst->data + ggml_batch_offset(dst, batch, dst->ne[2])) + nb*BLOCK_N;
            b += PACKED_INDEX(nb*4, 0, KB, get_tile_size<type>());

            const int n = std::min(BLOCK_N, N - nb*BLOCK_N);
            switch (M) {
                case 2: tinygemm_few_rows<vec_dot_type, type, 2>(n, KB, a, s, b, c, ldc); break;
                case 3: tinygemm_few_rows<vec_dot_type, type, 3>(n, KB, a, s, b, c, ldc); break;
                case 4: tinygemm_few_rows<vec_dot_type, type, 4>(n, KB, a, s, b, c, ldc); break;
                case 5: tinygemm_few_rows<vec_dot_type, type, 5>(n, KB, a, s, b, c, ldc); break;
                case 6: tinygemm_few_rows<vec_dot_type, type, 6>(n, KB, a, s, b, c, ldc); break;
                case 7: tinygemm_few_rows<vec_dot_type, type, 7>(n, KB, a, s, b, c, ldc); break;
                case 8: tinygemm_few_rows<vec_dot_type, type, 8>(n, KB, a, s, b, c, ldc); break;
                default: GGML_ABORT("fatal error");
            }
        }
    });
}

bool compute_mul_mat_amx(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!is_few_rows(dst)) {
        return false;
    }
    GGML_ASSERT(params->wsize >= mul_mat_amx_work_size(dst));

    const ggml_type TYPE = dst->src[0]->type;
    GGML_DISPATCH_QTYPES(TYPE, [&] {
        if constexpr (!std::is_same<type, block_q4_1>::value) {
            few_rows_mul_mat<type, vec_dot_type, blck_size>(params, dst);
        }
    });
    return true;
}

}  // namespace pymtp
