// The layouts of IQ1_S to IQ3_S for neon.h. An index of 8 to 11 bits chooses an entry of a table: the magnitudes of 8
// elements (IQ2), of 4 elements (IQ3), or 8 elements of -1, 0 and 1 (IQ1).

#pragma once

#include "matmul/neon_superblocks.h"

#ifdef __aarch64__

namespace pymtp::neon {

// Looks up 16 bytes: two entries of 8 bytes, or four entries of 4 bytes.
template <typename I> static inline int8x16_t look_up(const uint64_t * table, const I * i) {
    return vreinterpretq_s8_u64(vcombine_u64(vld1_u64(table + i[0]), vld1_u64(table + i[1])));
}
template <typename I> static inline int8x16_t look_up(const uint32_t * table, const I * i) {
    const uint32x4_t four = {table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
    return vreinterpretq_s8_u32(four);
}

// Returns bytes of 8 signs from their first seven: the eighth makes the number of negative signs even.
static inline uint8x16_t even_signs(uint8x16_t x) {
    const uint8x16_t seven = vandq_u8(x, vdupq_n_u8(0x7f));
    return vsliq_n_u8(seven, vcntq_u8(seven), 7);
}

// Returns the signs of words that have four times seven signs in their lower 28 bits.
static inline uint8x16_t signs_of_words(uint32x4_t words) {
    uint32x4_t x = vsliq_n_u32(words, vshrq_n_u32(words, 7), 8);
    x = vsliq_n_u32(x, vshrq_n_u32(words, 14), 16);
    x = vsliq_n_u32(x, vshrq_n_u32(words, 21), 24);
    return even_signs(vreinterpretq_u8_u32(x));
}

// Returns 2*x + 1 for bytes x.
static inline int8x16_t twice_plus_one(uint8x16_t x) {
    return vreinterpretq_s8_u8(vsliq_n_u8(vdupq_n_u8(1), x, 1));
}

static inline int8x16_t low_half(int8x16_t x) { return vcombine_s8(vget_low_s8(x), vdup_n_s8(0)); }

// Returns the scales of words that have them in their upper 4 bits.
static inline int8x16_t scales_of_words(uint32x4_t first, uint32x4_t next) {
    const uint16x8_t high = vuzp2q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(next));
    const uint8x16_t byte = vcombine_u8(vshrn_n_u16(high, 8), vdup_n_u8(0));
    return low_half(twice_plus_one(vshrq_n_u8(byte, 4)));
}

static inline uint32x4_t words_at(const void * x) { return vreinterpretq_u32_u8(vld1q_u8((const uint8_t *) x)); }

template <typename B, int N> struct codebook : scaled_runs<B, N> {
    // Looks up the magnitudes, and gives them their signs: bits that are one where the element is negative. index: the
    // indexes of a vector, and after those of each second vector `gap` others. signs: those of 8 vectors each.
    template <int gap = 0, typename T, typename I>
    void look_up_signed(const T * table, const I * index, uint8x16x2_t signs) {
        unroll<VECTORS>([&](auto j) PYMTP_INLINE {
            const int8x16_t negative = vreinterpretq_s8_u8(spread_bits<j % 8>(signs.val[j/8]));
            constexpr int n = 16/sizeof(T);  // indexes of a vector
            this->q[j] = vsubq_s8(veorq_s8(look_up(table, index + j % 4*n + j % 4/2*gap), negative), negative);
            if constexpr (j % 4 == 3) {
                // Without this, the compiler loads most entries first, for which it has too few registers.
                index += 4*n + 2*gap;
                asm volatile("" : "+r"(index), "+w"(this->q[j]));
            }
        });
    }
};

struct iq2_xxs : codebook<block_iq2_xxs, 8> {
    void unpack(const block * b) {
        // for 32 elements: four indexes of 8 bits, then four times seven signs, then a scale of 4 bits
        const uint8_t * index = (const uint8_t *) b->qs;
        const uint32x4_t words[2] = {vuzp2q_u32(words_at(index),      words_at(index + 16)),
                                     vuzp2q_u32(words_at(index + 32), words_at(index + 48))};
        const uint8x16x2_t signs = {{signs_of_words(words[0]), signs_of_words(words[1])}};
        look_up_signed<4>(iq2xxs_grid, index, signs);
        set_scales(scales_of_words(words[0], words[1]));
        d = half_to_float(b->d)*0.125f;
    }
};

struct iq2_xs : codebook<block_iq2_xs, 16> {
    void unpack(const block * b) {
        // for 8 elements: an index of 9 bits, and seven signs
        uint16_t index[UNIT/8];
        uint8x16x2_t signs;
        unroll<2>([&](auto i) PYMTP_INLINE {
            const uint16x8_t x = vld1q_u16(b->qs + 16*i), y = vld1q_u16(b->qs + 16*i + 8);
            vst1q_u16(index + 16*i,     vandq_u16(x, vdupq_n_u16(511)));
            vst1q_u16(index + 16*i + 8, vandq_u16(y, vdupq_n_u16(511)));
            signs.val[i] = even_signs(vshrq_n_u8(vuzp2q_u8(vreinterpretq_u8_u16(x), vreinterpretq_u8_u16(y)), 1));
        });
        look_up_signed(iq2xs_grid, index, signs);
        set_scales(twice_plus_one(nibbles_of(vld1_u8(b->scales))));
        d = half_to_float(b->d)*0.125f;
    }
};

// Stores 16 indexes: bytes of lower bits, and bytes of upper bits.
static inline void store_indexes(uint16_t * index, uint8x16_t low, uint8x16_t high) {
    vst1q_u8((uint8_t *) index,      vzip1q_u8(low, high));
    vst1q_u8((uint8_t *) index + 16, vzip2q_u8(low, high));
}

struct iq2_s : codebook<block_iq2_s, 16> {
    void unpack(const block * b) {
        uint16_t index[UNIT/8];
        // the upper two bits of four indexes are in a byte
        const int8x16_t right = vreinterpretq_s8_u32(vdupq_n_u32(0xfafcfe00));  // shifts by 0, 2, 4 and 6
        unroll<2>([&](auto i) PYMTP_INLINE {
            const uint8x16_t each = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
            const uint8x16_t four = vreinterpretq_u8_u32(vdupq_n_u32(word_at(b->qh + 4*i)));
            store_indexes(index + 16*i, vld1q_u8(b->qs + 16*i),
                vandq_u8(vshlq_u8(vqtbl1q_u8(four, each), right), vdupq_n_u8(3)));
        });
        const uint8x16x2_t signs = {{vld1q_u8(b->qs + QK_K/8), vld1q_u8(b->qs + QK_K/8 + 16)}};
        look_up_signed(iq2s_grid, index, signs);
        set_scales(twice_plus_one(nibbles_of(vld1_u8(b->scales))));
        d = half_to_float(b->d)*0.125f;
    }
};

struct iq3_xxs : codebook<block_iq3_xxs, 8> {
    void unpack(const block * b) {
        // for 32 elements: four times seven signs, then a scale of 4 bits
        const uint32x4_t words[2] = {words_at(b->qs + QK_K/4), words_at(b->qs + QK_K/4 + 16)};
        const uint8x16x2_t signs = {{signs_of_words(words[0]), signs_of_words(words[1])}};
        look_up_signed(iq3xxs_grid, b->qs, signs);
        set_scales(scales_of_words(words[0], words[1]));
        d = half_to_float(b->d)*0.25f;
    }
};

struct iq3_s : codebook<block_iq3_s, 8> {
    void unpack(const block * b) {
        uint16_t index[UNIT/4];
        // the ninth bits of 8 indexes are in a byte
        const uint8x16_t ninth = vcombine_u8(vld1_u8(b->qh), vdup_n_u8(0));
        unroll<4>([&](auto i) PYMTP_INLINE {
            store_indexes(
                index + 16*i, vld1q_u8(b->qs + 16*i), vandq_u8(spread_bits<i>(ninth), vdupq_n_u8(1)));
        });
        const uint8x16x2_t signs = {{vld1q_u8(b->signs), vld1q_u8(b->signs + 16)}};
        look_up_signed(iq3s_grid, index, signs);
        set_scales(low_half(twice_plus_one(nibbles_of(vreinterpret_u8_u32(vdup_n_u32(word_at(b->scales)))))));
        d = half_to_float(b->d);
    }
};

// IQ1_S and IQ1_M add 1/8 to entries of -1, 0 and 1, or subtract it. q has the entries times their scales. eighths: for
// 8 elements each, the scale, with the sign of the 1/8.
template <typename B> struct ones : by_superblock<B> {
    int16x8_t eighths[UNIT/64];

    void look_up_scaled(const uint16_t * index, int8x16_t scales) {
        unroll<VECTORS>([&](auto j) PYMTP_INLINE {
            this->q[j] = vmulq_s8(look_up(iq1s_grid, index + 2*j), vdupq_laneq_s8(scales, j));
        });
    }

    // scales: for 8 elements each. negative: -1 where 1/8 is subtracted, else 0.
    void set_eighths(int i, int16x8_t scales, int16x8_t negative) {
        eighths[i] = vsubq_s16(veorq_s16(scales, negative), negative);
    }

    float32x4_t add(float32x4_t sum, const superblock_activations & a) const {
        const int32x4_t eight = vshlq_n_s32(this->dot_all(a), 3);
        return this->add_scaled(sum, dot_sums<UNIT/8>(eight, eighths, a.sums8), a);
    }
};

struct iq1_s : ones<block_iq1_s> {
    void unpack(const block * b) {
        // for 32 elements, 16 bits: four times the upper three bits of an index, a scale of three bits, the sign of 1/8
        const uint16x8_t blocks   = vld1q_u16(b->qh);
        const uint16x8_t three    = vandq_u16(vshrq_n_u16(blocks, 12), vdupq_n_u16(7));
        const int16x8_t  scales   = vreinterpretq_s16_u16(vsliq_n_u16(vdupq_n_u16(1), three, 1));
        const int16x8_t  negative = vshrq_n_s16(vreinterpretq_s16_u16(blocks), 15);
        this->set_eighths(0, scales, negative);
        const int16x8_t all = eighths[0];
        uint16_t index[UNIT/8];
        unroll<4>([&](auto i) PYMTP_INLINE {  // indexes of two blocks
            const uint8x16_t each = {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3};
            const uint8x16_t two  = vaddq_u8(each, vdupq_n_u8(4*i));
            const uint16x8_t bits = vreinterpretq_u16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(blocks), two));
            const uint16x8_t high = vshlq_u16(bits, int16x8_t{8, 5, 2, -1, 8, 5, 2, -1});
            vst1q_u16(index + 8*i, vorrq_u16(vmovl_u8(vld1_u8(b->qs + 8*i)), vandq_u16(high, vdupq_n_u16(0x700))));
            eighths[i] = vreinterpretq_s16_s8(vqtbl1q_s8(vreinterpretq_s8_s16(all), two));
        });
        const int8x8_t bytes = vmovn_s16(scales);
        this->look_up_scaled(index, vcombine_s8(vzip1_s8(bytes, bytes), vzip2_s8(bytes, bytes)));
        d = half_to_float(b->d)*0.125f;
    }
};

struct iq1_m : ones<block_iq1_m> {
    void unpack(const block * b) {
        // for each four runs, 16 bits: four scales of three bits, and a part of the superblock's scale
        uint64_t parts;
        memcpy(&parts, b->scales, sizeof(parts));
        const uint16x8_t words = vreinterpretq_u16_u64(vdupq_n_u64(parts));
        int16x8_t scales[2];
        unroll<2>([&](auto i) PYMTP_INLINE {
            const uint8x16_t each  = {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3};
            const uint16x8_t bits  = vreinterpretq_u16_u8(
                vqtbl1q_u8(vreinterpretq_u8_u16(words), vaddq_u8(each, vdupq_n_u8(4*i))));
            const uint16x8_t three = vandq_u16(
                vshlq_u16(bits, int16x8_t{0, -3, -6, -9, 0, -3, -6, -9}), vdupq_n_u16(7));
            scales[i] = vreinterpretq_s16_u16(vsliq_n_u16(vdupq_n_u16(1), three, 1));
        });
        // for each index, 4 bits: its upper three bits, the sign of 1/8
        const uint8x16_t both = vld1q_u8(b->qh);
        uint16_t index[UNIT/8];
        unroll<2>([&](auto i) PYMTP_INLINE {
            const uint8x16_t four = nibbles_of(i == 0 ? vget_low_u8(both) : vget_high_u8(both));
            store_indexes(index + 16*i, vld1q_u8(b->qs + 16*i), vandq_u8(four, vdupq_n_u8(7)));
            const int8x16_t negative = vreinterpretq_s8_u8(vtstq_u8(four, vdupq_n_u8(8)));
            this->set_eighths(2*i,     vzip1q_s16(scales[i], scales[i]), vmovl_s8(vget_low_s8(negative)));
            this->set_eighths(2*i + 1, vzip2q_s16(scales[i], scales[i]), vmovl_high_s8(negative));
        });
        this->look_up_scaled(index, vcombine_s8(vmovn_s16(scales[0]), vmovn_s16(scales[1])));
        d = half_to_float((parts >> 12 & 0xf) | (parts >> 24 & 0xf0) | (parts >> 36 & 0xf00) |
            (parts >> 48 & 0xf000))*0.125f;
    }
};

}  // namespace pymtp::neon

#endif
