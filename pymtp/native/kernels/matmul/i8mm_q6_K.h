// The kernel of i8mm.h for Q6_K.

#pragma once

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include "matmul/i8mm.h"

#include "ggml-cpu-impl.h"
#include "quants.h"
#include "simd-mappings.h"

#include <cmath>

namespace pymtp::i8mm {

// The template argument T of i8mm::multiply() for Q6_K.
struct q6_K {

typedef block_q6_K block;

static constexpr int RUN  = 16;  // number of elements that share a scale
static constexpr int RUNS = 8;   // number of runs in half a block

static inline int8x16_t join_bits(uint8x16_t low, uint8x16_t high) {
    const uint8x16_t bits = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
    return vsubq_s8(vreinterpretq_s8_u8(bits), vdupq_n_s8(32));
}

// Unpacks the runs of half a block (half: 0 or 1), in the order of ggml_vec_dot_q6_K_q8_K().
static inline void unpack(const block_q6_K & w, int half, int8x16_t * runs) {
    const uint8x16_t nibble = vdupq_n_u8(0x0f);
    for (int i = 0; i < 2; ++i) {
        const uint8x16_t a    = vld1q_u8(w.ql + 64*half + RUN*i);
        const uint8x16_t b    = vld1q_u8(w.ql + 64*half + RUN*i + 32);
        const uint8x16_t high = vld1q_u8(w.qh + 32*half + RUN*i);

        runs[i]     = join_bits(vandq_u8(a, nibble), vshlq_n_u8(high, 4));
        runs[i + 2] = join_bits(vandq_u8(b, nibble), vshlq_n_u8(high, 2));
        runs[i + 4] = join_bits(vshrq_n_u8(a, 4), high);
        runs[i + 6] = join_bits(vshrq_n_u8(b, 4), vshrq_n_u8(high, 2));
    }
}

static inline float dot_row(const block_q6_K * w, const block_q8_K * x, int64_t n_blocks) {
    float sum = 0.0f;
    for (int64_t block = 0; block < n_blocks; ++block) {
        int32x4_t block_sum = vdupq_n_s32(0);
        for (int half = 0; half < 2; ++half) {
            int8x16_t runs[RUNS];
            unpack(w[block], half, runs);
            for (int run = 0; run < RUNS; ++run) {
                const int8x16_t q = vld1q_s8(x[block].qs + 128*half + RUN*run);
                block_sum = vmlaq_n_s32(
                    block_sum, ggml_vdotq_s32(vdupq_n_s32(0), runs[run], q), w[block].scales[RUNS*half + run]);
            }
        }
        const float scale = GGML_CPU_FP16_TO_FP32(w[block].d)*x[block].d;
        sum = std::fma(scale, (float) vaddvq_s32(block_sum), sum);
    }
    return sum;
}

// Multiplies rows w0 and w1 of the weights by 2*PAIRS rows of activations. Sets sums[i] to the products of w0 and w1
// with x[2*i], then with x[2*i + 1].
template <int PAIRS>
static inline void dot_pairs(
    const block_q6_K * w0, const block_q6_K * w1, const block_q8_K * const * x, int64_t n_blocks, float32x4_t * sums) {
    for (int pair = 0; pair < PAIRS; ++pair) {
        sums[pair] = vdupq_n_f32(0.0f);
    }
    for (int64_t block = 0; block < n_blocks; ++block) {
        int32x4_t block_sum[PAIRS];
        for (int pair = 0; pair < PAIRS; ++pair) {
            block_sum[pair] = vdupq_n_s32(0);
        }
        for (int half = 0; half < 2; ++half) {
            int8x16_t runs0[RUNS], runs1[RUNS];
            int32x4_t scales[RUNS];
            unpack(w0[block], half, runs0);
            unpack(w1[block], half, runs1);
            zip_scales(
                vmovl_s8(vld1_s8(w0[block].scales + RUNS*half)), vmovl_s8(vld1_s8(w1[block].scales + RUNS*half)),
                scales);
            for (int run = 0; run < RUNS; ++run) {
                const int8x16_t low  = zip_low(runs0[run], runs1[run]);
                const int8x16_t high = zip_high(runs0[run], runs1[run]);
                for (int pair = 0; pair < PAIRS; ++pair) {
                    const int8x16_t q0 = vld1q_s8(x[2*pair][block].qs + 128*half + RUN*run);
                    const int8x16_t q1 = vld1q_s8(x[2*pair + 1][block].qs + 128*half + RUN*run);
                    const int32x4_t run_dot = vmmlaq_s32(vdupq_n_s32(0), zip_low(q0, q1), low);
                    block_sum[pair] = vmlaq_s32(
                        block_sum[pair], vmmlaq_s32(run_dot, zip_high(q0, q1), high), scales[run]);
                }
            }
        }
        const float d0 = GGML_CPU_FP16_TO_FP32(w0[block].d);
        const float d1 = GGML_CPU_FP16_TO_FP32(w1[block].d);
        const float32x4_t d = {d0, d1, d0, d1};
        for (int pair = 0; pair < PAIRS; ++pair) {
            const float32x2_t x0 = vdup_n_f32(x[2*pair][block].d);
            const float32x2_t x1 = vdup_n_f32(x[2*pair + 1][block].d);
            sums[pair] = vfmaq_f32(sums[pair], vmulq_f32(d, vcombine_f32(x0, x1)), vcvtq_f32_s32(block_sum[pair]));
        }
    }
}

};

}  // namespace pymtp::i8mm

#endif
