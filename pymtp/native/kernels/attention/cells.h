// The inner loops of attention, for several rows and some blocks of KV cells. Each cell (F16 or F32) is read once for a
// group of rows. A row has the same bits, whether it is computed alone or with others.

#pragma once

#include "quants.h"
#include "simd.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace pymtp {

static constexpr int BLOCK_KV = 16; // number of cells in a block, which are computed together
static constexpr int MAX_SPAN = 4;  // most blocks of V that are added at once
static constexpr int FEW_ROWS = 4;  // so many rows wait for memory rather than for arithmetic

// Returns one bit for each cell of a block: 1 if the mask does not hide the cell.
static inline uint32_t visible_cells(const ggml_fp16_t * mask) {
    constexpr uint16_t MINUS_INF = 0xfc00;
#if defined(PYMTP_AVX2)
    const __m256i hidden = _mm256_cmpeq_epi16(
        _mm256_loadu_si256((const __m256i *) mask), _mm256_set1_epi16((short) MINUS_INF));

    return 0xffff ^ _mm_movemask_epi8(
        _mm_packs_epi16(_mm256_castsi256_si128(hidden), _mm256_extracti128_si256(hidden, 1)));
#else
    uint32_t visible = 0;
    for (int j = 0; j < BLOCK_KV; ++j) {
        visible |= (uint32_t) (mask[j] != MINUS_INF) << j;
    }
    return visible;
#endif
}

#if defined(PYMTP_AVX2)
// Converts signed bytes to floats, times d.
static inline void bytes_to_f32(const __m128i bytes, simd::fvec d, float * y) {
#if defined(PYMTP_AVX512)
    simd::fstore(y, simd::fmul(simd::to_float(_mm512_cvtepi8_epi32(bytes)), d));
#else
    simd::fstore(y,     simd::fmul(simd::to_float(_mm256_cvtepi8_epi32(bytes)), d));
    simd::fstore(y + 8, simd::fmul(simd::to_float(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))), d));
#endif
}

// Converts n values of a cell. The result is that of llama.cpp's dequantize_row_q8_0() and dequantize_row_q4_0(), which
// are compiled without these vectors.
static inline void q8_0_to_f32(const block_q8_0 * x, float * y, int64_t n) {
    for (int64_t i = 0; i < n/QK8_0; ++i, y += QK8_0) {
        const simd::fvec d = simd::frepeat(GGML_CPU_FP16_TO_FP32(x[i].d));
        bytes_to_f32(_mm_loadu_si128((const __m128i *) x[i].qs), d, y);
        bytes_to_f32(_mm_loadu_si128((const __m128i *) (x[i].qs + 16)), d, y + 16);
    }
}
static inline void q4_0_to_f32(const block_q4_0 * x, float * y, int64_t n) {
    const __m128i mask = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    for (int64_t i = 0; i < n/QK4_0; ++i, y += QK4_0) {
        const simd::fvec d  = simd::frepeat(GGML_CPU_FP16_TO_FP32(x[i].d));
        const __m128i    qs = _mm_loadu_si128((const __m128i *) x[i].qs);
        bytes_to_f32(_mm_sub_epi8(_mm_and_si128(qs, mask), eight), d, y);
        bytes_to_f32(_mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(qs, 4), mask), eight), d, y + 16);
    }
}
#endif

// The sums of a group of rows stay in registers: of DOT_GROUP rows with half as many cells as a vector has lanes, or of
// MAD_GROUP rows with PART vectors of V.
static constexpr int DOT_GROUP = 3;
#if defined(PYMTP_AVX512)
static constexpr int MAD_GROUP = 6;
#else
static constexpr int MAD_GROUP = 3;
#endif
static constexpr int PART = 4;

#if defined(PYMTP_SIMD_F32)

static inline simd::fvec fload(const float * x)       { return simd::fload(x); }
static inline simd::fvec fload(const ggml_fp16_t * x) { return simd::fload_half(x); }

template <int R, typename T, typename F>
static inline void dot_cells(
        int64_t n, const float * const * q, const T * k, int64_t stride, float * const * s, F & fetch) {
    constexpr int HALF = simd::LANES/2;

    for (int j0 = 0; j0 < BLOCK_KV; j0 += simd::LANES) {
        simd::fvec half[2][R];
        for (int h = 0; h < 2; ++h, k += HALF*stride) {
            fetch.step();
            simd::fvec sum[R][HALF];
            for (int r = 0; r < R; ++r) {
                for (int j = 0; j < HALF; ++j) {
                    sum[r][j] = simd::fzero();
                }
            }
            for (int64_t i = 0; i < n; i += simd::LANES) {
                for (int j = 0; j < HALF; ++j) {
                    const simd::fvec kj = fload(k + j*stride + i);
                    for (int r = 0; r < R; ++r) {
                        sum[r][j] = simd::fma(kj, simd::fload(q[r] + i), sum[r][j]);
                    }
                }
            }
            for (int r = 0; r < R; ++r) {
                half[h][r] = simd::half_sums(sum[r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            simd::fstore(s[r] + j0, simd::join(half[0][r], half[1][r]));
        }
    }
}

// Adds the visible cells of the blocks v, times their weights p, to N vectors of each of R rows y. The sums stay in
// registers.
template <int R, int N, typename T, typename F>
static inline void mad_part(
        float * const * y, const T * const * v, int n_blocks, int64_t stride, const uint64_t * visible,
        const float * const * p, F & fetch) {
    simd::fvec sum[R][N];
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < N; ++i) {
            sum[r][i] = simd::fload(y[r] + i*simd::LANES);
        }
    }
    for (int b = 0; b < n_blocks; ++b) {
        fetch.step();
        uint32_t any_visible = 0;
        uint32_t all_visible = 0xffff;
        for (int r = 0; r < R; ++r) {
            any_visible |= visible[r] >> b*BLOCK_KV & 0xffff;
            all_visible &= visible[r] >> b*BLOCK_KV;
        }
        // Each vector of a cell is loaded once, for all rows.
        const auto add = [&](int j, auto is_visible) {
            simd::fvec pj[R];
            for (int r = 0; r < R; ++r) {
                pj[r] = simd::frepeat(p[r][b*BLOCK_KV + j]);
            }
            for (int i = 0; i < N; ++i) {
                const simd::fvec vj = fload(v[b] + j*stride + i*simd::LANES);
                for (int r = 0; r < R; ++r) {
                    if (is_visible(r)) {
                        sum[r][i] = simd::fma(vj, pj[r], sum[r][i]);
                    }
                }
            }
        };
        if (all_visible == 0xffff) {
            for (int j = 0; j < BLOCK_KV; ++j) {
                add(j, [](int) { return true; });
            }
        } else {
            for (int j = 0; any_visible >> j != 0; ++j) {
                add(j, [&](int r) { return visible[r] >> (b*BLOCK_KV + j) & 1; });
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int i = 0; i < N; ++i) {
            simd::fstore(y[r] + i*simd::LANES, sum[r][i]);
        }
    }
}

#endif

// Sets each score s[j] to s[j]*scale + mask[j]*slope, or to minus infinity where the mask is minus infinity. Raises
// max[j] to the new s[j] if that is larger; ignores NaN.
static inline void mask_cells(float * s, float scale, const ggml_fp16_t * mask, float slope, float * max) {
#if defined(PYMTP_SIMD_F32)
    const simd::fvec minus_inf = simd::frepeat(-INFINITY);
    for (int j = 0; j < BLOCK_KV; j += simd::LANES) {
        const simd::fvec m = simd::fload_half(mask + j);
        const simd::fvec x = simd::fma(m, simd::frepeat(slope), simd::fmul(simd::fload(s + j), simd::frepeat(scale)));
#if defined(PYMTP_AVX512)
        const simd::fvec y = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(m, minus_inf, _CMP_EQ_OQ), minus_inf);
#elif defined(PYMTP_AVX2)
        const simd::fvec y = _mm256_blendv_ps(x, minus_inf, _mm256_cmp_ps(m, minus_inf, _CMP_EQ_OQ));
#else
        const simd::fvec y = simd::fselect(x, minus_inf, m, minus_inf);
#endif
        simd::fstore(s + j, y);
        simd::fstore(max + j, simd::fmax(y, simd::fload(max + j)));
    }
#else
    for (int j = 0; j < BLOCK_KV; ++j) {
        const float m = GGML_CPU_FP16_TO_FP32(mask[j]);
        s[j]   = m == -INFINITY ? m : s[j]*scale + m*slope;
        max[j] = s[j] > max[j] ? s[j] : max[j];
    }
#endif
}

// Returns whether n_rows rows should read F16 cells of n values directly, without a copy in F32. Each group of rows
// converts the cells again, so with more rows a copy takes less time: on x86, 0.9 of the time for 32 rows (Xeon with
// AVX-512). NEON needs separate instructions for the conversion.
static inline bool can_read_f16(int64_t n, int n_rows) {
#if defined(PYMTP_SIMD_F32) && defined(__ARM_NEON)
    return n%simd::LANES == 0 && n_rows <= 2;
#elif defined(PYMTP_SIMD_F32)
    return n%simd::LANES == 0 && n_rows <= FEW_ROWS;
#else
    GGML_UNUSED(n);
    GGML_UNUSED(n_rows);
    return false;
#endif
}

static inline int n_groups(int n_rows, int group) { return (n_rows + group - 1)/group; }

#if defined(PYMTP_SIMD_F32)
// Returns how often dot_rows() calls fetch.step() for a block of cells of n values, and how often mad_rows() calls it.
static inline int n_dot_steps(int n_rows, int64_t n) {
    return n%simd::LANES == 0 ? n_groups(n_rows, DOT_GROUP)*2*BLOCK_KV/simd::LANES : n_rows;
}
static inline int n_mad_steps(int n_rows, int64_t n) {
    const int64_t n_vectors = n/simd::LANES;
    return n%simd::LANES == 0 ? n_groups(n_rows, MAD_GROUP)*(n_vectors/PART + n_vectors%PART) : n_rows;
}

// Calls f(r, size) for groups of up to MAX rows, of about equal size, which cover rows 0 to n_rows.
template <int MAX, typename F> static inline void for_groups(int n_rows, F f) {
    int r = 0;
    for (int left = n_groups(n_rows, MAX); left > 0; --left) {
        const int size = n_groups(n_rows - r, left);
        switch (size) {
            case 1: f(r, std::integral_constant<int, 1>());                break;
            case 2: f(r, std::integral_constant<int, 2>());                break;
            case 3: f(r, std::integral_constant<int, 3>());                break;
            case 4: f(r, std::integral_constant<int, std::min(4, MAX)>()); break;
            case 5: f(r, std::integral_constant<int, std::min(5, MAX)>()); break;
            case 6: f(r, std::integral_constant<int, std::min(6, MAX)>()); break;
        }
        r += size;
    }
}
#else
static inline int n_dot_steps(int n_rows, int64_t) { return n_rows; }
static inline int n_mad_steps(int n_rows, int64_t) { return n_rows; }
#endif

// Computes the scores s[r][j], the dot products of row q[r] and cell k[j], for all cells j of a block.
template <typename T, typename F>
static inline void dot_rows(
        int n_rows, int64_t n, const float * const * q, const T * k, int64_t stride, float * const * s, F & fetch) {
#if defined(PYMTP_SIMD_F32)
    if (n%simd::LANES == 0) {
        for_groups<DOT_GROUP>(n_rows, [&](int r, auto size) {
            dot_cells<size>(n, q + r, k, stride, s + r, fetch);
        });
        return;
    }
#endif
    if constexpr (std::is_same_v<T, float>) {
        for (int r = 0; r < n_rows; ++r) {
            fetch.step();
            for (int j = 0; j < BLOCK_KV; ++j) {
                ggml_vec_dot_f32(n, s[r] + j, 0, k + j*stride, 0, q[r], 0, 1);
            }
        }
    }
}

// Adds p[r][j]*v[j] to y[r] for each cell j that row r sees, in some blocks of cells. Skips the other cells, because
// they may hold NaN, which a weight of 0 would not remove. All rows add a part of the cells before the next part
// follows: so the part stays in the CPU's first cache.
template <typename T, typename F>
static inline void mad_rows(int n_rows, int64_t n, float * const * y, const T * const * v, int n_blocks, int64_t stride,
        const uint64_t * visible, const float * const * p, F & fetch) {
#if defined(PYMTP_SIMD_F32)
    if (n%simd::LANES == 0) {
        const auto add_part = [&](int64_t i, auto size) {
            const T * part[MAX_SPAN];
            for (int b = 0; b < n_blocks; ++b) {
                part[b] = v[b] + i;
            }
            for_groups<MAD_GROUP>(n_rows, [&](int r, auto n_group) {
                float * sums[n_group];
                for (int g = 0; g < n_group; ++g) {
                    sums[g] = y[r + g] + i;
                }
                mad_part<n_group, size>(sums, part, n_blocks, stride, visible + r, p + r, fetch);
            });
        };
        int64_t i = 0;
        for (; i + PART*simd::LANES <= n; i += PART*simd::LANES) {
            add_part(i, std::integral_constant<int, PART>());
        }
        for (; i < n; i += simd::LANES) {
            add_part(i, std::integral_constant<int, 1>());
        }
        return;
    }
#endif
    if constexpr (std::is_same_v<T, float>) {
        for (int r = 0; r < n_rows; ++r) {
            fetch.step();
            for (int j = 0; j < n_blocks*BLOCK_KV; ++j) {
                if (visible[r] >> j & 1) {
                    ggml_vec_mad_f32(n, y[r], v[j/BLOCK_KV] + j%BLOCK_KV*stride, p[r][j]);
                }
            }
        }
    }
}

}  // namespace pymtp
