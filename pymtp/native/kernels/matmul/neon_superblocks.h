// The layouts of neon.h with superblocks of 256 elements; those with codebooks are in neon_codebooks.h.

#pragma once

#include "matmul/neon_blocks.h"

#ifdef __aarch64__

namespace pymtp::neon {

// A unit of a row of activations in Q8_K, with sums of its bytes. d: the scale. minus_sum: four parts of minus the sum.
struct alignas(64) superblock_activations {
    int8_t  q[UNIT];
    int16_t sums8[UNIT/8];
    int16_t sums16[UNIT/16];
    int32_t minus_sum[4];
    float   d;
};

// d: the scale of the superblock.
template <typename B> struct by_superblock {
    typedef B block;
    typedef superblock_activations activations;

    static constexpr int BLOCK = QK_K;

    int8x16_t q[VECTORS];
    float     d;

    static void quantize(const float * x, int64_t n, activations & a) {
        block_q8_K b;
        quantize_row_q8_K(x, &b, n);
        memcpy(a.q, b.qs, sizeof(a.q));
        memcpy(a.sums16, b.bsums, sizeof(a.sums16));
        a.d = b.d;
        int32x4_t minus_sum = vdupq_n_s32(0);
        for (int i = 0; i < UNIT; i += 64) {
            int16x8_t two[4];  // sums of two elements
            for (int j = 0; j < 4; ++j) {
                two[j] = vpaddlq_s8(vld1q_s8(a.q + i + 16*j));
            }
            const int16x8_t sums = vpaddq_s16(vpaddq_s16(two[0], two[1]), vpaddq_s16(two[2], two[3]));
            vst1q_s16(a.sums8 + i/8, sums);
            minus_sum = vsubq_s32(minus_sum, vpaddlq_s16(sums));
        }
        vst1q_s32(a.minus_sum, minus_sum);
    }

    // Returns the products of the bytes, in four lanes. The products are added up in two chains, which takes less time.
    int32x4_t dot_all(const activations & a) const {
        int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        for_each_vector(a.q, [&](auto j, int8x16_t x) PYMTP_INLINE { sums[j % 2] = dot(sums[j % 2], q[j], x); });
        return vaddq_s32(sums[0], sums[1]);
    }

    float32x4_t add_scaled(float32x4_t sum, int32x4_t products, const activations & a) const {
        return vfmaq_n_f32(sum, vcvtq_f32_s32(products), d*a.d);
    }
};

// Layouts whose bytes are the weights without d: the scales are multiplied into the bytes.
template <typename B> struct scaled_bytes : by_superblock<B> {
    float32x4_t add(float32x4_t sum, const superblock_activations & a) const {
        return this->add_scaled(sum, this->dot_all(a), a);
    }
};

// Layouts with a scale for each of N runs, as an integer. The products P[i] are those of runs 0 to i together, because
// that takes no zeros to start from: their sum times the scales s is the sum of P[i]*(s[i] - s[i + 1]), with s[N] = 0.
template <typename B, int N> struct scaled_runs : by_superblock<B> {
    int32x4_t steps[N/4];

    // scales: N bytes, then zeros.
    void set_scales(int8x16_t scales) {
        const int8x16_t step = vsubq_s8(scales, vextq_s8(scales, vdupq_n_s8(0), 1));
        unroll<N/8>([&](auto i) PYMTP_INLINE {
            const int16x8_t wide = i == 0 ? vmovl_s8(vget_low_s8(step)) : vmovl_high_s8(step);
            steps[2*i]     = vmovl_s16(vget_low_s16(wide));
            steps[2*i + 1] = vmovl_high_s16(wide);
        });
    }

    float32x4_t add(float32x4_t sum, const superblock_activations & a) const {
        int32x4_t four;
        int32x4_t products = vdupq_n_s32(0);
        int32x4_t total    = vdupq_n_s32(0);
        for_each_vector(a.q, [&](auto j, int8x16_t x) PYMTP_INLINE {
            products = dot(products, this->q[j], x);
            if constexpr ((j + 1) % (VECTORS/N) == 0) {
                constexpr int i = j/(VECTORS/N);
                if constexpr (i % 4 == 0) {
                    // Without this, the compiler copies each step to a register of its own before the loop of rows.
                    // It has too few registers.
                    four = steps[i/4];
                    asm volatile("" : "+w"(four));
                }
                total = vmlaq_laneq_s32(total, products, four, i % 4);
                asm volatile("" : "+w"(products), "+w"(total));  // else copies of `products` are kept, too
            }
        });
        return this->add_scaled(sum, total, a);
    }
};

// Returns numbers times the sums of N runs of elements, in four lanes.
template <int N> static inline int32x4_t dot_sums(int32x4_t total, const int16x8_t * numbers, const int16_t * sums) {
    unroll<N/8>([&](auto i) PYMTP_INLINE {
        const int16x8_t x = vld1q_s16(sums + 8*i);
        total = vmlal_high_s16(vmlal_s16(total, vget_low_s16(numbers[i]), vget_low_s16(x)), numbers[i], x);
    });
    return total;
}

template <int n> static inline uint8x16_t shift_left(uint8x16_t x) {
    if constexpr (n < 0) {
        return vshrq_n_u8(x, -n);
    } else {
        return vshlq_n_u8(x, n);
    }
}

// Returns vector j of elements of two bits, where a byte has elements that are 32 apart.
template <int j> static inline uint8x16_t two_bits(const uint8_t * qs) {
    return vandq_u8(shift_left<-(j/2%4*2)>(vld1q_u8(qs + j/8*32 + j%2*16)), vdupq_n_u8(3));
}

struct q2_k : by_superblock<block_q2_K> {
    int16x8_t mins[2];
    float     dmin;

    void unpack(const block * b) {
        const uint8x16_t both   = vld1q_u8(b->scales);
        const uint8x16_t scales = vandq_u8(both, vdupq_n_u8(15));
        const uint8x16_t high   = vshrq_n_u8(both, 4);
        mins[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(high)));
        mins[1] = vreinterpretq_s16_u16(vmovl_high_u8(high));
        unroll<VECTORS>([&](auto j) PYMTP_INLINE {
            q[j] = vreinterpretq_s8_u8(vmulq_u8(two_bits<j>(b->qs), vdupq_laneq_u8(scales, j)));
        });
        d    = half_to_float(b->d);
        dmin = half_to_float(b->dmin);
    }

    float32x4_t add(float32x4_t sum, const activations & a) const {
        const int32x4_t below = dot_sums<16>(vdupq_n_s32(0), mins, a.sums16);
        return vfmsq_n_f32(add_scaled(sum, dot_all(a), a), vcvtq_f32_s32(below), dmin*a.d);
    }
};

// The bytes are minus the weights, because 4*32 does not fit a signed byte.
struct q3_k : scaled_bytes<block_q3_K> {
    void unpack(const block * b) {
        // Scales 0 to 7 have their lower 4 bits in lower nibbles, the others in upper ones. Four other bytes have the
        // upper 2 bits.
        const uint8x8_t  low   = vld1_u8(b->scales);
        const uint32x4_t word  = vdupq_n_u32(word_at(b->scales + 8));
        const uint8x16_t upper = vreinterpretq_u8_u32(vshlq_u32(word, int32x4_t{0, -2, -4, -6}));
        const uint8x16_t six   = vsliq_n_u8(vcombine_u8(low, vshr_n_u8(low, 4)), vandq_u8(upper, vdupq_n_u8(3)), 4);
        const int8x16_t scales = vsubq_s8(
            vreinterpretq_s8_u8(vandq_u8(six, vdupq_n_u8(63))), vdupq_n_s8(32));
        unroll<VECTORS>([&](auto j) PYMTP_INLINE {
            // for each bit that is zero, the weight is less by 4
            const uint8x16_t less = shift_left<2 - j/2>(vmvnq_u8(vld1q_u8(b->hmask + j%2*16)));
            const uint8x16_t minus = vsubq_u8(vandq_u8(less, vdupq_n_u8(4)), two_bits<j>(b->qs));
            q[j] = vmulq_s8(vreinterpretq_s8_u8(minus), vdupq_laneq_s8(scales, j));
        });
        d = -half_to_float(b->d);
    }
};

// A byte of TQ1_0 is a fraction of 256, whose first five digits in base 3 are elements, plus 1.
struct tq1_0 : scaled_bytes<block_tq1_0> {
    // Returns the first digit minus 1.
    static int8x16_t digit(uint8x16_t x) {
        return vreinterpretq_s8_u8(vsubq_u8(vcltq_u8(x, vdupq_n_u8(86)), vcgeq_u8(x, vdupq_n_u8(171))));
    }

    void unpack(const block * b) {
        uint8x16_t x[3] = {vld1q_u8(b->qs), vld1q_u8(b->qs + 16), vld1q_u8(b->qs + 32)};
        unroll<5>([&](auto i) PYMTP_INLINE {
            q[2*i]     = digit(x[0]);
            q[2*i + 1] = digit(x[1]);
            q[10 + i]  = digit(x[2]);
            unroll<3>([&](auto j) PYMTP_INLINE { x[j] = vmulq_u8(x[j], vdupq_n_u8(3)); });
        });
        const uint8x16_t power = vreinterpretq_u8_u32(uint32x4_t{0x01010101, 0x03030303, 0x09090909, 0x1b1b1b1b});
        q[15] = digit(vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(word_at(b->qh))), power));
        d = half_to_float(b->d);
    }
};

// A byte has four elements plus 1, of two bits. q has these elements times 1, 4, 16 and 1, which saves shifts.
struct tq2_0 : by_superblock<block_tq2_0> {
    void unpack(const block * b) {
        unroll<4>([&](auto i) PYMTP_INLINE {
            const uint8x16_t x = vld1q_u8(b->qs + 16*i);
            int8x16_t * to = q + i/2*8 + i%2;
            to[0] = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(3)));
            to[2] = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(12)));
            to[4] = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(48)));
            to[6] = vreinterpretq_s8_u8(vshrq_n_u8(x, 6));
        });
        d = half_to_float(b->d);
    }

    float32x4_t add(float32x4_t sum, const activations & a) const {
        int32x4_t sums[3] = {vld1q_s32(a.minus_sum), vdupq_n_s32(0), vdupq_n_s32(0)};
        for_each_vector(a.q, [&](auto j, int8x16_t x) PYMTP_INLINE {
            constexpr int i = j/2 % 4 % 3;
            sums[i] = dot(sums[i], q[j], x);
        });
        return add_scaled(sum, vsraq_n_s32(vsraq_n_s32(sums[0], sums[1], 2), sums[2], 4), a);
    }
};

struct iq4_xs : scaled_runs<block_iq4_xs, 8> {
    void unpack(const block * b) {
        const int8x16_t values = vld1q_s8(kvalues_iq4nl);
        unroll<8>([&](auto i) PYMTP_INLINE {
            const uint8x16_t x = vld1q_u8(b->qs + 16*i);
            q[2*i]     = vqtbl1q_s8(values, vandq_u8(x, vdupq_n_u8(15)));
            q[2*i + 1] = vqtbl1q_s8(values, vshrq_n_u8(x, 4));
        });
        // a scale has its lower 4 bits in scales_l, its upper 2 bits in scales_h
        const uint8x8_t  low  = vreinterpret_u8_u32(vdup_n_u32(word_at(b->scales_l)));
        const uint16x8_t high = vshlq_u16(vdupq_n_u16(b->scales_h), int16x8_t{0, -2, -4, -6, -8, -10, -12, -14});
        const uint8x8_t  six  = vsli_n_u8(vget_low_u8(nibbles_of(low)), vand_u8(vmovn_u16(high), vdup_n_u8(3)), 4);
        set_scales(vcombine_s8(vsub_s8(vreinterpret_s8_u8(six), vdup_n_s8(32)), vdup_n_s8(0)));
        d = half_to_float(b->d);
    }
};

}  // namespace pymtp::neon

#endif
