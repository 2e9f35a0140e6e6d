// The layouts with superblocks of 256 elements; the others are in plain_blocks.h and plain_codebooks.h. The function
// unpack() of a layout unpacks a unit of plain.h with SIMD, like llama.cpp's dequantize_row_*. half: the half of the
// superblock to unpack, where a unit is only one half (AVX2). Each layout also defines:
//
//   BLOCK          the number of elements in a block
//   MAX            the largest byte of weights::q
//   ZERO_POINT     the number that weights::q adds to the quants
//   MINS           whether the type has minima
//   NIBBLES_APART  whether the two nibbles of a byte are 16 elements apart

#pragma once

#include "matmul/plain.h"

#ifdef PYMTP_AVX2

namespace pymtp::plain {

static inline float half_to_float(ggml_half x) { return GGML_CPU_FP16_TO_FP32(x); }

struct by_superblock {
    static constexpr int  BLOCK         = QK_K;
    static constexpr bool NIBBLES_APART = false;
};

// Puts the scales of the runs (of 16 elements) in the order of the lanes.
static inline __m128i in_lane_order(__m128i scales) {
    return _mm_shuffle_epi8(scales, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

// Joins four values of 6 bits, one in each byte: their lower 4 bits are in `low`, their upper 2 bits in `high`.
static inline uint32_t join_high_bits(uint32_t low, uint32_t high) {
    return (low & 0x0f0f0f0f) | ((high & 0x03030303) << 4);
}

static inline uint64_t join(uint32_t low, uint32_t high) {
    return low | (uint64_t) high << 32;
}

struct q6_k : by_superblock {
    typedef block_q6_K block;

    static constexpr int  MAX        = 63;
    static constexpr int  ZERO_POINT = 32;
    static constexpr bool MINS       = false;

    static inline void unpack(const block * b, int half, weights & w) {
        const ivec a    = load_halves(b->ql,      64, half);
        const ivec c    = load_halves(b->ql + 32, 64, half);
        const ivec high = load_halves(b->qh,      32, half);
        const ivec mask = repeat1(0x30);

        w.q[0] = bits_or(low4(a),  bits_and(shift_left2<4>(high), mask));
        w.q[1] = bits_or(low4(c),  bits_and(shift_left2<2>(high), mask));
        w.q[2] = bits_or(high4(a), bits_and(high, mask));
        w.q[3] = bits_or(high4(c), bits_and(shift_right2<2>(high), mask));

        const __m128i scales = in_lane_order(bytes_at(b->scales, half));
        w.scale = fmul(float_lanes(scales), repeat_half(b->d));
    }
};

// Unpacks elements of two bits, where a byte has elements that are 32 apart.
static inline void unpack_two_bits(const uint8_t * qs, int half, weights & w) {
    const ivec q     = load_halves(qs, 32, half);
    const ivec three = repeat1(3);

    w.q[0] = bits_and(q,                  three);
    w.q[1] = bits_and(shift_right2<2>(q), three);
    w.q[2] = bits_and(shift_right2<4>(q), three);
    w.q[3] = bits_and(shift_right2<6>(q), three);
}

struct q2_k : by_superblock {
    typedef block_q2_K block;

    static constexpr int  MAX        = 3;
    static constexpr int  ZERO_POINT = 0;
    static constexpr bool MINS       = true;

    static inline void unpack(const block * b, int half, weights & w) {
        unpack_two_bits(b->qs, half, w);

        const __m128i both   = in_lane_order(bytes_at(b->scales, half));
        const __m128i mask   = _mm_set1_epi8(15);
        const __m128i scales = _mm_and_si128(both, mask);
        const __m128i mins   = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
        w.scale = fmul(float_lanes(scales), repeat_half(b->d));
        w.min   = fmul(float_lanes(mins),   repeat_half(b->dmin));
    }
};

struct tq2_0 : by_superblock {
    typedef block_tq2_0 block;

    static constexpr int  MAX        = 3;
    static constexpr int  ZERO_POINT = 1;
    static constexpr bool MINS       = false;

    static inline void unpack(const block * b, int half, weights & w) {
        unpack_two_bits(b->qs, half, w);
        w.scale = repeat_half(b->d);
    }
};

// A byte of TQ1_0 is a fraction of 256, whose first five digits in base 3 are elements.
struct tq1_0 : by_superblock {
    typedef block_tq1_0 block;

    static constexpr int  MAX        = 2;
    static constexpr int  ZERO_POINT = 1;
    static constexpr bool MINS       = false;

    // Removes the first digit.
    static inline __m256i next(__m256i x) { return _mm256_add_epi8(x, _mm256_add_epi8(x, x)); }
    static inline __m128i next(__m128i x) { return _mm_add_epi8(x, _mm_add_epi8(x, x)); }

    // Returns the first digit: how many of the thirds of 256 are not above x.
    static inline ivec digit(ivec x) {
#if defined(PYMTP_AVX512)
        const ivec one = _mm512_maskz_set1_epi8(_mm512_cmpge_epu8_mask(x, repeat1(86)), 1);
        return _mm512_mask_add_epi8(one, _mm512_cmpge_epu8_mask(x, repeat1((int8_t) 171)), one, repeat1(1));
#else
        const auto from = [&](ivec y) { return _mm256_cmpeq_epi8(_mm256_max_epu8(x, y), x); };
        return abs1(_mm256_add_epi8(from(repeat1(86)), from(repeat1((int8_t) 171))));
#endif
    }

    static inline void unpack(const block * b, int half, weights & w) {
        // The first five pieces are digits of 32 bytes, the next five runs digits of 16 bytes, the last run those of 4.
        __m256i piece[8];
        piece[0] = _mm256_loadu_si256((const __m256i *) b->qs);
        for (int i = 1; i < 5; ++i) {
            piece[i] = next(piece[i - 1]);
        }
        __m128i run[6];
        run[0] = _mm_loadu_si128((const __m128i *) (b->qs + 32));
        for (int i = 1; i < 5; ++i) {
            run[i] = next(run[i - 1]);
        }
        int32_t last;
        memcpy(&last, b->qh, sizeof(last));
        __m128i four = _mm_mullo_epi16(
            _mm_cvtepu8_epi16(_mm_set1_epi32(last)), _mm_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3));
        four = _mm_packus_epi16(_mm_and_si128(four, _mm_set1_epi16(255)), _mm_setzero_si128());
        run[5] = _mm_unpacklo_epi64(four, next(next(four)));
        for (int i = 0; i < 3; ++i) {
            piece[5 + i] = _mm256_set_m128i(run[2*i + 1], run[2*i]);
        }
        for (int j = 0; j < 4; ++j) {
#if defined(PYMTP_AVX512)
            w.q[j] = digit(_mm512_inserti64x4(_mm512_castsi256_si512(piece[j]), piece[j + 4], 1));
#else
            w.q[j] = digit(half ? piece[j + 4] : piece[j]);
#endif
        }
        (void) half;
        w.scale = repeat_half(b->d);
    }
};

struct q3_k : by_superblock {
    typedef block_q3_K block;

    static constexpr int  MAX        = 7;
    static constexpr int  ZERO_POINT = 4;
    static constexpr bool MINS       = false;

    static inline void unpack(const block * b, int half, weights & w) {
        const ivec low   = load_halves(b->qs, 32, half);
        const ivec high  = load_shifted<4>(b->hmask, half);
        const ivec three = repeat1(3);
        const ivec four  = repeat1(4);

        w.q[0] = bits_or(bits_and(low,                  three), bits_and(shift_left2<2>(high),  four));
        w.q[1] = bits_or(bits_and(shift_right2<2>(low), three), bits_and(shift_left2<1>(high),  four));
        w.q[2] = bits_or(bits_and(shift_right2<4>(low), three), bits_and(high,                  four));
        w.q[3] = bits_or(bits_and(shift_right2<6>(low), three), bits_and(shift_right2<1>(high), four));

        uint32_t s[3];
        memcpy(s, b->scales, sizeof(s));
        const __m128i scales = bytes_of(
            join(join_high_bits(s[0],      s[2]),      join_high_bits(s[1],      s[2] >> 2)),
            join(join_high_bits(s[0] >> 4, s[2] >> 4), join_high_bits(s[1] >> 4, s[2] >> 6)), half);
        w.scale = fmul(float_lanes(in_lane_order(_mm_sub_epi8(scales, _mm_set1_epi8(32)))), repeat_half(b->d));
    }
};

// Unpacks the scales and minima of Q4_K and Q5_K. A half has four scales and four minima. Each of them is for two
// lanes: lanes 0 to 3 and lanes 4 to 7 of the half have the same four.
template <typename B> static inline void unpack_scales_and_mins(const B * b, int half, weights & w) {
    uint32_t s[3];
    memcpy(s, b->scales, sizeof(s));
    const uint32_t scales0 = s[0] & 0x3f3f3f3f;
    const uint32_t mins0   = s[1] & 0x3f3f3f3f;
    const uint32_t scales1 = join_high_bits(s[2],      s[0] >> 6);
    const uint32_t mins1   = join_high_bits(s[2] >> 4, s[1] >> 6);
#if defined(PYMTP_AVX512)
    (void) half;
    w.scale = fmul(float_lanes(_mm_set_epi64x(join(scales1, scales1), join(scales0, scales0))), repeat_half(b->d));
    w.min   = fmul(float_lanes(_mm_set_epi64x(join(mins1,   mins1),   join(mins0,   mins0))),   repeat_half(b->dmin));
#else
    // The lower four lanes have the scales, the upper four lanes the minima.
    const __m128i d    = _mm_shuffle_epi8(_mm_cvtsi32_si128(b->d | b->dmin << 16),
        _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3));
    const fvec    both = fmul(
        float_lanes(bytes_of(join(scales0, mins0), join(scales1, mins1), half)), _mm256_cvtph_ps(d));
    w.scale = _mm256_permute2f128_ps(both, both, 0x00);
    w.min   = _mm256_permute2f128_ps(both, both, 0x11);
#endif
}

struct q4_k : by_superblock {
    typedef block_q4_K block;

    static constexpr int  MAX        = 15;
    static constexpr int  ZERO_POINT = 0;
    static constexpr bool MINS       = true;

    static inline void unpack(const block * b, int half, weights & w) {
        const ivec a = load_halves(b->qs,      64, half);
        const ivec c = load_halves(b->qs + 32, 64, half);

        w.q[0] = low4(a);
        w.q[1] = high4(a);
        w.q[2] = low4(c);
        w.q[3] = high4(c);
        unpack_scales_and_mins(b, half, w);
    }
};

struct q5_k : by_superblock {
    typedef block_q5_K block;

    static constexpr int  MAX        = 31;
    static constexpr int  ZERO_POINT = 0;
    static constexpr bool MINS       = true;

    static inline void unpack(const block * b, int half, weights & w) {
        const ivec a    = load_halves(b->qs,      64, half);
        const ivec c    = load_halves(b->qs + 32, 64, half);
        const ivec high = load_shifted<4>(b->qh, half);
        const ivec mask = repeat1(16);

        w.q[0] = bits_or(low4(a),  bits_and(shift_left2<4>(high), mask));
        w.q[1] = bits_or(high4(a), bits_and(shift_left2<3>(high), mask));
        w.q[2] = bits_or(low4(c),  bits_and(shift_left2<2>(high), mask));
        w.q[3] = bits_or(high4(c), bits_and(shift_left2<1>(high), mask));
        unpack_scales_and_mins(b, half, w);
    }
};

// Returns the values of IQ4_NL and IQ4_XS at the indexes i, plus BYTE_ZERO_POINT.
static inline ivec lookup_iq4(ivec i) {
    alignas(16) static const int8_t values[16] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return lookup16(bits_xor(repeat16_at(values), repeat1((int8_t) BYTE_ZERO_POINT)), i);
}

struct iq4_xs : by_superblock {
    typedef block_iq4_xs block;

    static constexpr int  MAX           = 255;
    static constexpr int  ZERO_POINT    = BYTE_ZERO_POINT;
    static constexpr bool MINS          = false;
    static constexpr bool NIBBLES_APART = true;

    static inline void unpack(const block * b, int half, weights & w) {
        const ivec a = load_halves(b->qs,      64, half);
        const ivec c = load_halves(b->qs + 32, 64, half);

        w.q[0] = lookup_iq4(low4(a));
        w.q[1] = lookup_iq4(high4(a));
        w.q[2] = lookup_iq4(low4(c));
        w.q[3] = lookup_iq4(high4(c));

        // Each scale has its lower 4 bits in l and its upper 2 bits in h. Spread both to one byte per scale.
        uint32_t low;
        memcpy(&low, b->scales_l, sizeof(low));
        uint64_t l = low;
        l = (l | l << 16) & 0x0000ffff0000ffff;
        l = (l | l <<  8) & 0x00ff00ff00ff00ff;
        l = (l | l <<  4) & 0x0f0f0f0f0f0f0f0f;
        uint64_t h = b->scales_h;
        h = (h | h << 24) & 0x000000ff000000ff;
        h = (h | h << 12) & 0x000f000f000f000f;
        h = (h | h <<  6) & 0x0303030303030303;

        const uint64_t x      = l | h << 4;
        const __m128i  scales = _mm_shuffle_epi8(
            _mm_sub_epi8(bytes_of(x, x >> 32, half), _mm_set1_epi8(32)),
            _mm_setr_epi8(0, 0, 2, 2, 1, 1, 3, 3, 8, 8, 10, 10, 9, 9, 11, 11));
        w.scale = fmul(float_lanes(scales), repeat_half(b->d));
    }
};

}  // namespace pymtp::plain

#endif
