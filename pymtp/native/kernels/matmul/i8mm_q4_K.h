// The kernel of i8mm.h for Q4_K.

#pragma once

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include "matmul/i8mm.h"

#include "ggml-cpu-impl.h"
#include "quants.h"
#include "simd-mappings.h"

#include <cmath>
#include <cstring>

namespace pymtp::i8mm {

// The template argument T of i8mm::multiply() for Q4_K.
struct q4_K {

typedef block_q4_K block;

static constexpr int RUN  = 32;  // number of elements that share a scale and a minimum
static constexpr int RUNS = 8;   // number of runs in a block

struct run_factors {
    int16x8_t scales, mins;  // one number for each run
};

// Unpacks the 8 scales and 8 minima of a block, which have 6 bits each. The first 8 bytes of w.scales have the first
// four scales and the first four minima in their lower 6 bits. The other scales and minima have their lower 4 bits in
// the last 4 bytes, and their upper 2 bits in the upper 2 bits of the first 8 bytes.
static inline run_factors unpack_factors(const block_q4_K & w) {
    uint32_t a, b, c;
    memcpy(&a, w.scales, 4);
    memcpy(&b, w.scales + 4, 4);
    memcpy(&c, w.scales + 8, 4);
    const uint64_t scales = (a & 0x3f3f3f3f) | (uint64_t) ((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)) << 32;
    const uint64_t mins   = (b & 0x3f3f3f3f) | (uint64_t) ((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)) << 32;
    return {vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(scales))), vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(mins)))};
}

// Unpacks runs 2*i and 2*i + 1 to runs[0] to runs[3]: each run has two halves of 16 elements.
static inline void unpack(const block_q4_K & w, int i, int8x16_t * runs) {
    const uint8x16_t a = vld1q_u8(w.qs + 32*i);
    const uint8x16_t b = vld1q_u8(w.qs + 32*i + 16);

    runs[0] = vreinterpretq_s8_u8(vandq_u8(a, vdupq_n_u8(0x0f)));
    runs[1] = vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(0x0f)));
    runs[2] = vreinterpretq_s8_u8(vshrq_n_u8(a, 4));
    runs[3] = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));
}

// Returns the sum of each run of the block x of activations.
static inline int16x8_t run_sums(const block_q8_K & x) {
    return vpaddq_s16(vld1q_s16(x.bsums), vld1q_s16(x.bsums + 8));
}

static inline int32x4_t dot(int16x8_t a, int16x8_t b) {
    return vmlal_high_s16(vmull_s16(vget_low_s16(a), vget_low_s16(b)), a, b);
}

static inline float dot_row(const block_q4_K * w, const block_q8_K * x, int64_t n_blocks) {
    float sum = 0.0f;
    for (int64_t block = 0; block < n_blocks; ++block) {
        const run_factors factors = unpack_factors(w[block]);
        int32x4_t run_dots[RUNS];
        for (int i = 0; i < RUNS/2; ++i) {
            int8x16_t runs[4];
            unpack(w[block], i, runs);
            for (int run = 0; run < 2; ++run) {
                const int8_t * q = x[block].qs + RUN*(2*i + run);
                run_dots[2*i + run] = ggml_vdotq_s32(vdupq_n_s32(0), runs[2*run], vld1q_s8(q));
                run_dots[2*i + run] = ggml_vdotq_s32(run_dots[2*i + run], runs[2*run + 1], vld1q_s8(q + 16));
            }
        }
        const int32x4_t low  = vpaddq_s32(vpaddq_s32(run_dots[0], run_dots[1]), vpaddq_s32(run_dots[2], run_dots[3]));
        const int32x4_t high = vpaddq_s32(vpaddq_s32(run_dots[4], run_dots[5]), vpaddq_s32(run_dots[6], run_dots[7]));
        int32x4_t block_sum = vmulq_s32(low, vmovl_s16(vget_low_s16(factors.scales)));
        block_sum = vmlaq_s32(block_sum, high, vmovl_high_s16(factors.scales));
        const float scale = GGML_CPU_FP16_TO_FP32(w[block].d)*x[block].d;
        const float dmin  = GGML_CPU_FP16_TO_FP32(w[block].dmin)*x[block].d;
        sum = std::fma(scale, (float) vaddvq_s32(block_sum), sum);
        sum = std::fma(-dmin, (float) vaddvq_s32(dot(factors.mins, run_sums(x[block]))), sum);
    }
    return sum;
}

// Multiplies rows w0 and w1 of the weights by 2*PAIRS rows of activations. Sets sums[i] to the products of w0 and w1
// with x[2*i], then with x[2*i + 1].
template <int PAIRS>
static inline void dot_pairs(
    const block_q4_K * w0, const block_q4_K * w1, const block_q8_K * const * x, int64_t n_blocks, float32x4_t * sums) {
    for (int pair = 0; pair < PAIRS; ++pair) {
        sums[pair] = vdupq_n_f32(0.0f);
    }
    for (int64_t block = 0; block < n_blocks; ++block) {
        const run_factors factors0 = unpack_factors(w0[block]);
        const run_factors factors1 = unpack_factors(w1[block]);
        int32x4_t scales[RUNS];
        zip_scales(factors0.scales, factors1.scales, scales);
        int32x4_t block_sum[PAIRS];
        for (int pair = 0; pair < PAIRS; ++pair) {
            block_sum[pair] = vdupq_n_s32(0);
        }
        for (int i = 0; i < RUNS/2; ++i) {
            int8x16_t runs0[4], runs1[4];
            unpack(w0[block], i, runs0);
            unpack(w1[block], i, runs1);
            for (int run = 0; run < 2; ++run) {
                int32x4_t run_dots[PAIRS];
                for (int pair = 0; pair < PAIRS; ++pair) {
                    run_dots[pair] = vdupq_n_s32(0);
                }
                for (int half = 0; half < 2; ++half) {
                    const int8x16_t low  = zip_low(runs0[2*run + half], runs1[2*run + half]);
                    const int8x16_t high = zip_high(runs0[2*run + half], runs1[2*run + half]);
                    for (int pair = 0; pair < PAIRS; ++pair) {
                        const int8x16_t q0 = vld1q_s8(x[2*pair][block].qs + RUN*(2*i + run) + 16*half);
                        const int8x16_t q1 = vld1q_s8(x[2*pair + 1][block].qs + RUN*(2*i + run) + 16*half);
                        run_dots[pair] = vmmlaq_s32(run_dots[pair], zip_low(q0, q1), low);
                        run_dots[pair] = vmmlaq_s32(run_dots[pair], zip_high(q0, q1), high);
                    }
                }
                for (int pair = 0; pair < PAIRS; ++pair) {
                    block_sum[pair] = vmlaq_s32(block_sum[pair], run_dots[pair], scales[2*i + run]);
                }
            }
        }
        const float32x4_t d = {
            GGML_CPU_FP16_TO_FP32(w0[block].d), GGML_CPU_FP16_TO_FP32(w1[block].d),
            GGML_CPU_FP16_TO_FP32(w0[block].d), GGML_CPU_FP16_TO_FP32(w1[block].d)};
        const float32x4_t dmin = {
            GGML_CPU_FP16_TO_FP32(w0[block].dmin), GGML_CPU_FP16_TO_FP32(w1[block].dmin),
            GGML_CPU_FP16_TO_FP32(w0[block].dmin), GGML_CPU_FP16_TO_FP32(w1[block].dmin)};
        for (int pair = 0; pair < PAIRS; ++pair) {
            const block_q8_K & x0 = x[2*pair][block];
            const block_q8_K & x1 = x[2*pair + 1][block];
            const float32x4_t scale = vcombine_f32(vdup_n_f32(x0.d), vdup_n_f32(x1.d));
            const int16x8_t s0 = run_sums(x0), s1 = run_sums(x1);
            const int32x4_t min_sums = vpaddq_s32(
                vpaddq_s32(dot(factors0.mins, s0), dot(factors1.mins, s0)),
                vpaddq_s32(dot(factors0.mins, s1), dot(factors1.mins, s1)));
            sums[pair] = vfmaq_f32(sums[pair], vmulq_f32(d, scale), vcvtq_f32_s32(block_sum[pair]));
            sums[pair] = vfmsq_f32(sums[pair], vmulq_f32(dmin, scale), vcvtq_f32_s32(min_sums));
        }
    }
}

};

}  // namespace pymtp::i8mm

#endif
