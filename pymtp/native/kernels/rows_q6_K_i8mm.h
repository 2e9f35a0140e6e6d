// Products of rows with weights of Q6_K that lie as in the file, by ARM's products of matrices of bytes (i8mm): two rows of the
// weights with two or four rows. The sum of a block is a whole number, so a row that is alone gets the same by dot products.
// Floats are made of it in one way.

#pragma once

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include "ggml-cpu-impl.h"
#include "quants.h"
#include "simd-mappings.h"

#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pymtp::q6_K {

constexpr int RUN  = 16;  // elements with one scale
constexpr int RUNS = 8;   // in half a block

static inline int8x16_t joined(uint8x16_t low, uint8x16_t high) {
    const uint8x16_t bits = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
    return vsubq_s8(vreinterpretq_s8_u8(bits), vdupq_n_s8(32));
}

// The runs of half a block, as ggml_vec_dot_q6_K_q8_K() takes them.
static inline void unpack(const block_q6_K & w, int half, int8x16_t * runs) {
    const uint8x16_t nibble = vdupq_n_u8(0x0f);
    for (int i = 0; i < 2; ++i) {
        const uint8x16_t a    = vld1q_u8(w.ql + 64*half + RUN*i);
        const uint8x16_t b    = vld1q_u8(w.ql + 64*half + RUN*i + 32);
        const uint8x16_t high = vld1q_u8(w.qh + 32*half + RUN*i);

        runs[i]     = joined(vandq_u8(a, nibble), vshlq_n_u8(high, 4));
        runs[i + 2] = joined(vandq_u8(b, nibble), vshlq_n_u8(high, 2));
        runs[i + 4] = joined(vshrq_n_u8(a, 4), high);
        runs[i + 6] = joined(vshrq_n_u8(b, 4), vshrq_n_u8(high, 2));
    }
}

static inline int8x16_t low_of_both(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

static inline int8x16_t high_of_both(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

// The scales of the runs of half a block of two rows, in the lanes of a product: both, twice.
static inline void scales_of_both(const block_q6_K & w0, const block_q6_K & w1, int half, int32x4_t * scales) {
    const int16x8_t s0 = vmovl_s8(vld1_s8(w0.scales + RUNS*half));
    const int16x8_t s1 = vmovl_s8(vld1_s8(w1.scales + RUNS*half));
    const int16x8_t both[2] = {vzip1q_s16(s0, s1), vzip2q_s16(s0, s1)};
    for (int i = 0; i < 2; ++i) {
        const int64x2_t a = vreinterpretq_s64_s32(vmovl_s16(vget_low_s16(both[i])));
        const int64x2_t b = vreinterpretq_s64_s32(vmovl_high_s16(both[i]));
        scales[4*i]     = vreinterpretq_s32_s64(vdupq_laneq_s64(a, 0));
        scales[4*i + 1] = vreinterpretq_s32_s64(vdupq_laneq_s64(a, 1));
        scales[4*i + 2] = vreinterpretq_s32_s64(vdupq_laneq_s64(b, 0));
        scales[4*i + 3] = vreinterpretq_s32_s64(vdupq_laneq_s64(b, 1));
    }
}

static inline float product(const block_q6_K * w, const block_q8_K * x, int64_t n_blocks) {
    float sum = 0.0f;
    for (int64_t block = 0; block < n_blocks; ++block) {
        int32x4_t whole = vdupq_n_s32(0);
        for (int half = 0; half < 2; ++half) {
            int8x16_t runs[RUNS];
            unpack(w[block], half, runs);
            for (int run = 0; run < RUNS; ++run) {
                const int8x16_t q = vld1q_s8(x[block].qs + 128*half + RUN*run);
                whole = vmlaq_n_s32(whole, ggml_vdotq_s32(vdupq_n_s32(0), runs[run], q), w[block].scales[RUNS*half + run]);
            }
        }
        const float scale = GGML_CPU_FP16_TO_FP32(w[block].d)*x[block].d;
        sum = std::fma(scale, (float) vaddvq_s32(whole), sum);
    }
    return sum;
}

// sums: of row 2*i of x with w0 and w1, then those of row 2*i + 1.
template <int PAIRS>
static inline void products_of_pairs(
    const block_q6_K * w0, const block_q6_K * w1, const block_q8_K * const * x, int64_t n_blocks, float32x4_t * sums) {
    for (int pair = 0; pair < PAIRS; ++pair) {
        sums[pair] = vdupq_n_f32(0.0f);
    }
    for (int64_t block = 0; block < n_blocks; ++block) {
        int32x4_t whole[PAIRS];
        for (int pair = 0; pair < PAIRS; ++pair) {
            whole[pair] = vdupq_n_s32(0);
        }
        for (int half = 0; half < 2; ++half) {
            int8x16_t runs0[RUNS], runs1[RUNS];
            int32x4_t scales[RUNS];
            unpack(w0[block], half, runs0);
            unpack(w1[block], half, runs1);
            scales_of_both(w0[block], w1[block], half, scales);
            for (int run = 0; run < RUNS; ++run) {
                const int8x16_t low  = low_of_both(runs0[run], runs1[run]);
                const int8x16_t high = high_of_both(runs0[run], runs1[run]);
                for (int pair = 0; pair < PAIRS; ++pair) {
                    const int8x16_t q0 = vld1q_s8(x[2*pair][block].qs + 128*half + RUN*run);
                    const int8x16_t q1 = vld1q_s8(x[2*pair + 1][block].qs + 128*half + RUN*run);
                    const int32x4_t part = vmmlaq_s32(vdupq_n_s32(0), low_of_both(q0, q1), low);
                    whole[pair] = vmlaq_s32(whole[pair], vmmlaq_s32(part, high_of_both(q0, q1), high), scales[run]);
                }
            }
        }
        const float d0 = GGML_CPU_FP16_TO_FP32(w0[block].d);
        const float d1 = GGML_CPU_FP16_TO_FP32(w1[block].d);
        const float32x4_t d = {d0, d1, d0, d1};
        for (int pair = 0; pair < PAIRS; ++pair) {
            const float32x2_t x0 = vdup_n_f32(x[2*pair][block].d);
            const float32x2_t x1 = vdup_n_f32(x[2*pair + 1][block].d);
            sums[pair] = vfmaq_f32(sums[pair], vmulq_f32(d, vcombine_f32(x0, x1)), vcvtq_f32_s32(whole[pair]));
        }
    }
}

// Two rows of the weights with 2*PAIRS rows.
template <int PAIRS>
static inline void multiply_pairs(
    const block_q6_K * const * w, int64_t n_blocks, const char * const * x, float * const * y, const int64_t * i) {
    const block_q8_K * rows[2*PAIRS];
    for (int row = 0; row < 2*PAIRS; ++row) {
        rows[row] = (const block_q8_K *) x[row];
    }
    float32x4_t sums[PAIRS];
    products_of_pairs<PAIRS>(w[0], w[1], rows, n_blocks, sums);
    for (int row = 0; row < 2*PAIRS; ++row) {
        y[row][i[0]] = sums[row/2][row%2*2];
        y[row][i[1]] = sums[row/2][row%2*2 + 1];
    }
}

// As rows_kernel::multiply(). Prepared rows are of block_q8_K.
static void multiply(
    int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    const int64_t n_blocks = k/QK_K;
    for (int64_t first = 0; first < m; first += 2) {
        const int64_t      i[2]       = {first, std::min(first + 1, m - 1)};
        const block_q6_K * weights[2] = {(const block_q6_K *) (w + i[0]*stride), (const block_q6_K *) (w + i[1]*stride)};

        int64_t r = 0;
        for (; r + 4 <= n; r += 4) {
            multiply_pairs<2>(weights, n_blocks, x + r, y + r, i);
        }
        if (r + 2 <= n) {
            multiply_pairs<1>(weights, n_blocks, x + r, y + r, i);
            r += 2;
        }
        for (int of = 0; r < n && of < 2; ++of) {
            y[r][i[of]] = product(weights[of], (const block_q8_K *) x[r], n_blocks);
        }
    }
}

}  // namespace pymtp::q6_K

#endif
