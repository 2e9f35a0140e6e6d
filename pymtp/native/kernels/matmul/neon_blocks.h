// The layouts of neon.h with blocks of 32 to 128 elements, which have a scale each (NVFP4: four). Blocks of zeros fill
// the last unit of a row.

#pragma once

#include "matmul/neon.h"

#ifdef __aarch64__

#define GGML_COMMON_IMPL_CPP  // the tables
#include "ggml-common.h"

namespace pymtp::neon {

// A unit of a row of activations in Q8_0, or in Q8_1 with sums. d: the scale of each block of 32. sums: the sum of the
// elements of each block.
struct block_activations {
    int8_t q[UNIT];
    float  d[UNIT/32];
    float  sums[UNIT/32];
};

// Computes the products of each block of 32, in four lanes each: p[i] for block i.
static inline void dot_blocks(const int8x16_t * q, const block_activations & a, int32x4_t * p) {
    for_each_vector(a.q, [&](auto j, int8x16_t x) PYMTP_INLINE {
        p[j/2] = dot(j % 2 == 0 ? vdupq_n_s32(0) : p[j/2], q[j], x);
    });
}

// Collects numbers of the 8 blocks at b: of(block) returns a number of 16 or 32 bits.
template <typename B, typename F> static inline uint16x8_t collect2(const B * b, F of) {
    uint16x8_t x = vdupq_n_u16(0);
    unroll<8>([&](auto i) PYMTP_INLINE { x = vsetq_lane_u16(of(b[i]), x, i); });
    return x;
}
template <typename B, typename F> static inline uint32x4_t collect4(const B * b, F of) {
    uint32x4_t x = vdupq_n_u32(0);
    unroll<4>([&](auto i) PYMTP_INLINE { x = vsetq_lane_u32(of(b[i]), x, i); });
    return x;
}

static inline uint32_t word_at(const void * x) {
    uint32_t word;
    memcpy(&word, x, sizeof(word));
    return word;
}

static inline void halves_to_floats(uint16x8_t x, float32x4_t * y) {
    y[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x)));
    y[1] = vcvt_high_f32_f16(vreinterpretq_f16_u16(x));
}

// Layouts with a scale for each 32 elements, and with minima, which are added to each weight, if MINS. d: the scales.
// m: the minima.
template <typename B, int N, bool MINS> struct by_block {
    typedef B block;
    typedef block_activations activations;

    static constexpr int BLOCK = N;

    int8x16_t   q[VECTORS];
    float32x4_t d[2];
    float32x4_t m[MINS ? 2 : 1];

    static void quantize(const float * x, int64_t n, activations & a) {
        typename std::conditional<MINS, block_q8_1, block_q8_0>::type b[UNIT/32];
        if constexpr (MINS) {
            quantize_row_q8_1(x, b, n);
        } else {
            quantize_row_q8_0(x, b, n);
        }
        memset(&a, 0, sizeof(a));
        for (int64_t i = 0; i < n/32; ++i) {
            memcpy(a.q + 32*i, b[i].qs, 32);
            a.d[i] = half_to_float(b[i].d);
            if constexpr (MINS) {
                a.sums[i] = half_to_float(b[i].s);
            }
        }
    }

    float32x4_t add(float32x4_t sum, const activations & a) const {
        int32x4_t p[UNIT/32];
        dot_blocks(q, a, p);
        unroll<2>([&](auto h) PYMTP_INLINE {
            const int32x4_t four = vpaddq_s32(vpaddq_s32(p[4*h],     p[4*h + 1]),
                                              vpaddq_s32(p[4*h + 2], p[4*h + 3]));
            sum = vfmaq_f32(sum, vcvtq_f32_s32(four), vmulq_f32(d[h], vld1q_f32(a.d + 4*h)));
            if constexpr (MINS) {
                sum = vfmaq_f32(sum, m[h], vld1q_f32(a.sums + 4*h));
            }
        });
        return sum;
    }

    // Unpacks nibbles: the lower ones of a block's 16 bytes, then the upper ones.
    void unpack_nibbles(const block * b) {
        unroll<8>([&](auto i) PYMTP_INLINE {
            const uint8x16_t x = vld1q_u8(b[i].qs);
            q[2*i]     = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15)));
            q[2*i + 1] = vreinterpretq_s8_u8(vshrq_n_u8(x, 4));
        });
    }

    // Adds the fifth bits, which are inverted by `inverted`: puts copies of them above the nibbles.
    void add_fifth_bits(const block * b, uint32_t inverted) {
        unroll<8>([&](auto i) PYMTP_INLINE {
            const uint8x16_t bits = vreinterpretq_u8_u32(vdupq_n_u32(word_at(b[i].qh) ^ inverted));
            q[2*i]     = vsliq_n_s8(q[2*i],     vreinterpretq_s8_u8(spread_bits<0>(bits)), 4);
            q[2*i + 1] = vsliq_n_s8(q[2*i + 1], vreinterpretq_s8_u8(spread_bits<1>(bits)), 4);
        });
    }

    void unpack_scales(const block * b) {
        halves_to_floats(collect2(b, [](const block & x) PYMTP_INLINE { return x.d; }), d);
    }

    // Unpacks scales and minima, which are side by side.
    void unpack_scales_and_minima(const block * b) {
        const auto both = [](const block & x) PYMTP_INLINE { return word_at(&x); };
        const uint16x8_t low  = vreinterpretq_u16_u32(collect4(b,     both));
        const uint16x8_t high = vreinterpretq_u16_u32(collect4(b + 4, both));
        halves_to_floats(vuzp1q_u16(low, high), d);
        halves_to_floats(vuzp2q_u16(low, high), m);
    }
};

struct q4_1 : by_block<block_q4_1, QK4_1, true> {
    void unpack(const block * b) {
        unpack_nibbles(b);
        unpack_scales_and_minima(b);
    }
};

struct q5_0 : by_block<block_q5_0, QK5_0, false> {
    void unpack(const block * b) {
        unpack_nibbles(b);
        add_fifth_bits(b, ~0u);  // a weight without the bit is a nibble minus 16
        unpack_scales(b);
    }
};

struct q5_1 : by_block<block_q5_1, QK5_1, true> {
    void unpack(const block * b) {
        unpack_nibbles(b);
        add_fifth_bits(b, 0);
        unroll<VECTORS>([&](auto j) PYMTP_INLINE { q[j] = vandq_s8(q[j], vdupq_n_s8(31)); });
        unpack_scales_and_minima(b);
    }
};

// Returns twice the values of the 4-bit floats (E2M1) i.
static inline int8x16_t lookup_e2m1(uint8x16_t i) { return vqtbl1q_s8(vld1q_s8(kvalues_mxfp4), i); }

struct mxfp4 : by_block<block_mxfp4, QK_MXFP4, false> {
    void unpack(const block * b) {
        unpack_nibbles(b);
        unroll<VECTORS>([&](auto j) PYMTP_INLINE { q[j] = lookup_e2m1(vreinterpretq_u8_s8(q[j])); });
        // A scale is a power of two, and half of it is taken, because the values are twice as large: a float of the
        // exponent e - 1. For e = 0 and 1, that is 0 rather than 2^-128 and 2^-127.
        const uint16x8_t e = vqsubq_u16(
            collect2(b, [](const block & x) PYMTP_INLINE { return x.e; }), vdupq_n_u16(1));
        d[0] = vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(e)), 23));
        d[1] = vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(e), 23));
    }
};

struct q1_0 : by_block<block_q1_0, QK1_0, false> {
    void unpack(const block * b) {
        unroll<2>([&](auto i) PYMTP_INLINE {
            const uint8x16_t bits = vld1q_u8(b[i].qs);
            unroll<8>([&](auto j) PYMTP_INLINE {  // -1 where the bit is one, else 1
                q[8*i + j] = vorrq_s8(vreinterpretq_s8_u8(spread_bits<j>(bits)), vdupq_n_s8(1));
            });
            d[i] = vdupq_n_f32(-half_to_float(b[i].d));
        });
    }
};

struct q2_0 : by_block<block_q2_0, QK2_0, false> {
    void unpack(const block * b) {
        const int8x16_t right = vreinterpretq_s8_u32(vdupq_n_u32(0xfafcfe00));  // shifts by 0, 2, 4 and 6
        unroll<4>([&](auto i) PYMTP_INLINE {
            const uint8x16_t x = vld1q_u8(b[i].qs);
            unroll<4>([&](auto j) PYMTP_INLINE {
                const uint8x16_t four = vreinterpretq_u8_u32(vdupq_laneq_u32(vreinterpretq_u32_u8(x), j));
                const uint8x16_t each = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
                const uint8x16_t two  = vandq_u8(vshlq_u8(vqtbl1q_u8(four, each), right), vdupq_n_u8(3));
                q[4*i + j] = vreinterpretq_s8_u8(vsubq_u8(two, vdupq_n_u8(1)));
            });
        });
        const float32x4_t scales = vcvt_f32_f16(vreinterpret_f16_u16(
            uint16x4_t{b[0].d, b[1].d, b[2].d, b[3].d}));
        d[0] = vzip1q_f32(scales, scales);
        d[1] = vzip2q_f32(scales, scales);
    }
};

// 8 bytes of NVFP4 are 16 elements with one scale: the lower nibbles, then the upper ones. Of two such runs, q has the
// first halves in one vector and the second halves in the next, and so have the activations. Then two lanes of the
// products belong to each run.
struct nvfp4 : by_block<block_nvfp4, QK_NVFP4, false> {
    float32x4_t runs[4];  // the scales of the runs

    static void quantize(const float * x, int64_t n, activations & a) {
        by_block::quantize(x, n, a);
        for (int i = 0; i < UNIT; i += 32) {
            std::swap_ranges(a.q + i + 8, a.q + i + 16, a.q + i + 16);
        }
    }

    void unpack(const block * b) {
        unroll<4>([&](auto i) PYMTP_INLINE {
            unroll<2>([&](auto j) PYMTP_INLINE {
                const uint8x16_t x = vld1q_u8(b[i].qs + 16*j);
                q[4*i + 2*j]     = lookup_e2m1(vandq_u8(x, vdupq_n_u8(15)));
                q[4*i + 2*j + 1] = lookup_e2m1(vshrq_n_u8(x, 4));
            });
        });
        // A scale has 4 bits of exponent and 3 bits of mantissa: the bits of an F16 number that is smaller by 2^8. Half
        // of the scale, because the values are twice as large. As in llama.cpp, the sign is ignored and NaN is 0.
        const uint8x16_t nan  = vdupq_n_u8(0x7f);
        const uint8x16_t plus = vandq_u8(
            vreinterpretq_u8_u32(collect4(b, [](const block & x) PYMTP_INLINE { return word_at(x.d); })), nan);
        const uint8x16_t e4m3 = vbicq_u8(plus, vceqq_u8(plus, nan));
        halves_to_floats(vshll_n_u8(vget_low_u8(e4m3), 7), runs);
        halves_to_floats(vshll_high_n_u8(e4m3, 7), runs + 2);
        unroll<4>([&](auto i) PYMTP_INLINE { runs[i] = vmulq_n_f32(runs[i], 128.0f); });
    }

    float32x4_t add(float32x4_t sum, const activations & a) const {
        int32x4_t p[UNIT/32];
        dot_blocks(q, a, p);
        unroll<4>([&](auto i) PYMTP_INLINE {
            const float32x4_t four   = vld1q_f32(a.d + i/2*4);  // the scales of four blocks
            const float32x4_t scales = i % 2 == 0 ? vzip1q_f32(four, four) : vzip2q_f32(four, four);
            sum = vfmaq_f32(sum, vcvtq_f32_s32(vpaddq_s32(p[2*i], p[2*i + 1])), vmulq_f32(runs[i], scales));
        });
        return sum;
    }
};

}  // namespace pymtp::neon

#endif
