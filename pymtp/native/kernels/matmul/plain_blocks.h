// The layouts with blocks of 32 to 128 elements, which have a scale each (NVFP4: four). See plain_superblocks.h.

#pragma once

#include "matmul/plain_superblocks.h"

#ifdef PYMTP_AVX2

namespace pymtp::plain {

struct by_block {
    static constexpr int  BLOCK = 32;
    static constexpr bool MINS  = false;
};

struct q8_0 : by_block {
    typedef block_q8_0 block;

    static constexpr int  MAX           = 255;
    static constexpr int  ZERO_POINT    = BYTE_ZERO_POINT;
    static constexpr bool NIBBLES_APART = false;

    static inline void unpack(const block * b, int, weights & w) {
        for (int j = 0; j < 4; ++j) {
            w.q[j] = bits_xor(
                load_halves((const uint8_t *) b[j].qs, 4*sizeof(block), 0), repeat1((int8_t) BYTE_ZERO_POINT));
        }
        w.scale = block_lanes([=](int i) { return b[i].d; }, 0x0604020006040200);
    }
};

// A layout with blocks of 32 elements, which are the nibbles of 16 bytes.
template <typename B> struct nibbles : by_block {
    typedef B block;

    static constexpr bool NIBBLES_APART = true;

    // Loads two blocks of each half.
    static inline ivec load_blocks(const block * b) {
        const __m128i first = _mm_loadu_si128((const __m128i *) b[0].qs);
        const __m256i two   = _mm256_inserti128_si256(
            _mm256_castsi128_si256(first), _mm_loadu_si128((const __m128i *) b[1].qs), 1);
#if defined(PYMTP_AVX512)
        const __m256i next = _mm256_inserti128_si256(_mm256_castsi128_si256(
            _mm_loadu_si128((const __m128i *) b[4].qs)), _mm_loadu_si128((const __m128i *) b[5].qs), 1);
        return _mm512_inserti64x4(_mm512_castsi256_si512(two), next, 1);
#else
        return two;
#endif
    }

    static inline void unpack_nibbles(const block * b, weights & w) {
        const ivec a = load_blocks(b);
        const ivec c = load_blocks(b + 2);

        w.q[0] = low4(a);
        w.q[1] = high4(a);
        w.q[2] = low4(c);
        w.q[3] = high4(c);
    }

    static inline fvec scale_of(const block * b) {
        return block_lanes([=](int i) { return b[i].d; }, 0x0606020204040000);
    }

    // Returns the minimum to subtract; the file has the number to add.
    static inline fvec min_of(const block * b) {
        return fmul(block_lanes([=](int i) { return b[i].m; }, 0x0606020204040000), frepeat(-1.0f));
    }
};

struct q4_0 : nibbles<block_q4_0> {
    static constexpr int MAX        = 15;
    static constexpr int ZERO_POINT = 8;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_nibbles(b, w);
        w.scale = scale_of(b);
    }
};

struct iq4_nl : nibbles<block_iq4_nl> {
    static constexpr int MAX        = 255;
    static constexpr int ZERO_POINT = BYTE_ZERO_POINT;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_nibbles(b, w);
        for (ivec & q : w.q) {
            q = lookup_iq4(q);
        }
        w.scale = scale_of(b);
    }
};

struct q4_1 : nibbles<block_q4_1> {
    static constexpr int  MAX        = 15;
    static constexpr int  ZERO_POINT = 0;
    static constexpr bool MINS       = true;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_nibbles(b, w);
        w.scale = scale_of(b);
        w.min   = min_of(b);
    }
};

// Adds the fifth bits of Q5_0 and Q5_1 to the nibbles of two blocks of each half.
template <typename B> static inline void add_fifth_bits(const B * b, ivec & low, ivec & high) {
    const auto bits_of = [](const B & block) {
        int32_t bits;
        memcpy(&bits, block.qh, sizeof(bits));
        return bits;
    };
    const ivec fifth = repeat1(16);
#if defined(PYMTP_AVX512)
    const __m128i bits = _mm_shuffle_epi8(
        _mm_set_epi32(bits_of(b[5]), bits_of(b[4]), bits_of(b[1]), bits_of(b[0])),
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    low  = _mm512_mask_add_epi8(low,  _mm_cvtsi128_si64(bits),      low,  fifth);
    high = _mm512_mask_add_epi8(high, _mm_extract_epi64(bits, 1), high, fifth);
#else
    const ivec bits  = _mm256_set_m128i(_mm_set1_epi32(bits_of(b[1])), _mm_set1_epi32(bits_of(b[0])));
    const ivec one   = repeat8(0x8040201008040201);
    const auto added = [&](__m128i bytes) {
        return bits_and(_mm256_cmpeq_epi8(bits_and(lookup16(bits, repeat16(bytes)), one), one), fifth);
    };
    low  = bits_or(low,  added(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)));
    high = bits_or(high, added(_mm_setr_epi8(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)));
#endif
}

template <typename B> static inline void unpack_five_bits(const B * b, weights & w) {
    nibbles<B>::unpack_nibbles(b, w);
    add_fifth_bits(b,     w.q[0], w.q[1]);
    add_fifth_bits(b + 2, w.q[2], w.q[3]);
}

struct q5_0 : nibbles<block_q5_0> {
    static constexpr int MAX        = 31;
    static constexpr int ZERO_POINT = 16;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_five_bits(b, w);
        w.scale = scale_of(b);
    }
};

struct q5_1 : nibbles<block_q5_1> {
    static constexpr int  MAX        = 31;
    static constexpr int  ZERO_POINT = 0;
    static constexpr bool MINS       = true;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_five_bits(b, w);
        w.scale = scale_of(b);
        w.min   = min_of(b);
    }
};

// Returns twice the values of the 4-bit floats (E2M1) i, plus E2M1_ZERO_POINT.
constexpr int E2M1_ZERO_POINT = 12;

static inline ivec lookup_e2m1(ivec i) {
    alignas(16) static const int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return lookup16(repeat16_at(values), i);
}

struct mxfp4 : nibbles<block_mxfp4> {
    static constexpr int MAX        = 2*E2M1_ZERO_POINT;
    static constexpr int ZERO_POINT = E2M1_ZERO_POINT;

    static inline void unpack(const block * b, int, weights & w) {
        unpack_nibbles(b, w);
        for (ivec & q : w.q) {
            q = lookup_e2m1(q);
        }
        // A scale is a power of two, and half of it is taken, because the values are twice as large: a float of the
        // exponent e - 1. For e = 0 and 1, that is 0 rather than 2^-128 and 2^-127.
        __m128i e = _mm_cvtsi32_si128(b[0].e | b[2].e << 8 | b[1].e << 16 | b[3].e << 24);
        e = _mm_unpacklo_epi8(e, e);  // a block has two lanes: of blocks 0, 2, 1, 3
#if defined(PYMTP_AVX512)
        const __m128i next = _mm_cvtsi32_si128(b[4].e | b[6].e << 8 | b[5].e << 16 | b[7].e << 24);
        e = _mm_unpacklo_epi64(e, _mm_unpacklo_epi8(next, next));
#endif
        e = _mm_subs_epu8(e, _mm_set1_epi8(1));
        w.scale = as_float(PYMTP_MM(slli_epi32)(PYMTP_MM(cvtepu8_epi32)(e), 23));
    }
};

struct nvfp4 {
    typedef block_nvfp4 block;

    static constexpr int  BLOCK         = QK_NVFP4;
    static constexpr int  MAX           = 2*E2M1_ZERO_POINT;
    static constexpr int  ZERO_POINT    = E2M1_ZERO_POINT;
    static constexpr bool MINS          = false;
    static constexpr bool NIBBLES_APART = true;

    static inline void unpack(const block * b, int, weights & w) {
        for (int j = 0; j < 2; ++j) {
            // 8 bytes are a run: its first 8 elements are the lower nibbles, its last 8 elements the upper ones
            const ivec both = load_halves(b[j].qs, 2*sizeof(block), 0);
            const ivec low  = lookup_e2m1(low4(both));
            const ivec high = lookup_e2m1(high4(both));
            w.q[2*j]     = PYMTP_MM(unpacklo_epi64)(low, high);
            w.q[2*j + 1] = PYMTP_MM(unpackhi_epi64)(low, high);
        }
        // A scale has 4 bits of exponent and 3 bits of mantissa: the bits of an F16 number that is smaller by 2^8. Half
        // of the scale, because the values are twice as large. As in llama.cpp, the sign is ignored and NaN is 0.
        const auto scales_of = [](const block & x) {
            int32_t bytes;
            memcpy(&bytes, x.d, sizeof(bytes));
            return bytes;
        };
#if defined(PYMTP_AVX512)
        const __m128i bytes = _mm_set_epi32(scales_of(b[3]), scales_of(b[2]), scales_of(b[1]), scales_of(b[0]));
#else
        const __m128i bytes = _mm_set_epi32(0, 0, scales_of(b[1]), scales_of(b[0]));
#endif
        const __m128i nan   = _mm_set1_epi8(0x7f);
        const __m128i plus  = _mm_and_si128(bytes, nan);
        const __m128i lanes = _mm_shuffle_epi8(_mm_andnot_si128(_mm_cmpeq_epi8(plus, nan), plus),
            _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
#if defined(PYMTP_AVX512)
        const fvec scales = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(lanes), 7));
#else
        const fvec scales = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(lanes), 7));
#endif
        w.scale = fmul(scales, frepeat(128.0f));
    }
};

struct q1_0 {
    typedef block_q1_0 block;

    static constexpr int  BLOCK         = QK1_0;
    static constexpr int  MAX           = 2;
    static constexpr int  ZERO_POINT    = 1;
    static constexpr bool MINS          = false;
    static constexpr bool NIBBLES_APART = false;

    static inline void unpack(const block * b, int, weights & w) {
        uint32_t bits[HALVES][4];
        for (int i = 0; i < HALVES; ++i) {
            memcpy(bits[i], b[i].qs, sizeof(bits[i]));
        }
        for (int j = 0; j < 4; ++j) {
#if defined(PYMTP_AVX512)
            w.q[j] = _mm512_maskz_set1_epi8(bits[0][j] | (uint64_t) bits[1][j] << 32, 2);
#else
            w.q[j] = bits_and(spread_bits(bits[0][j]), repeat1(2));
#endif
        }
#if defined(PYMTP_AVX512)
        w.scale = _mm512_cvtph_ps(_mm256_set_m128i(_mm_set1_epi16(b[1].d), _mm_set1_epi16(b[0].d)));
#else
        w.scale = repeat_half(b->d);
#endif
    }
};

struct q2_0 {
    typedef block_q2_0 block;

    static constexpr int  BLOCK         = QK2_0;
    static constexpr int  MAX           = 3;
    static constexpr int  ZERO_POINT    = 1;
    static constexpr bool MINS          = false;
    static constexpr bool NIBBLES_APART = false;

    static inline void unpack(const block * b, int, weights & w) {
        const auto qs = [&](int i) { return _mm_loadu_si128((const __m128i *) b[i].qs); };

        // Four bytes are a run. Of each half, the first 128 bits get runs 0, 2, 4, 6, the others runs 1, 3, 5, 7.
#if defined(PYMTP_AVX512)
        const __m512i in_order = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_set_m128i(qs(1), qs(0))), _mm256_set_m128i(qs(3), qs(2)), 1);
        const ivec x = _mm512_permutexvar_epi32(
            _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15), in_order);
        const __m128i d = _mm_setr_epi16(b[0].d, b[1].d, b[2].d, b[3].d, 0, 0, 0, 0);
        w.scale = _mm512_cvtph_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(d), _mm256_setr_epi8(
            0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 4, 5, 4, 5, 6, 7, 6, 7)));
#else
        const ivec x = _mm256_permutevar8x32_epi32(
            _mm256_set_m128i(qs(1), qs(0)), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
        w.scale = _mm256_cvtph_ps(_mm_setr_epi16(b[0].d, b[0].d, b[1].d, b[1].d, b[0].d, b[0].d, b[1].d, b[1].d));
#endif
        const ivec three = repeat1(3);
        const ivec e0 = bits_and(x, three),                  e1 = bits_and(shift_right2<2>(x), three);
        const ivec e2 = bits_and(shift_right2<4>(x), three), e3 = bits_and(shift_right2<6>(x), three);

        const ivec a = PYMTP_MM(unpacklo_epi8)(e0, e1), c = PYMTP_MM(unpacklo_epi8)(e2, e3);
        const ivec e = PYMTP_MM(unpackhi_epi8)(e0, e1), g = PYMTP_MM(unpackhi_epi8)(e2, e3);
        w.q[0] = PYMTP_MM(unpacklo_epi16)(a, c);
        w.q[1] = PYMTP_MM(unpackhi_epi16)(a, c);
        w.q[2] = PYMTP_MM(unpacklo_epi16)(e, g);
        w.q[3] = PYMTP_MM(unpackhi_epi16)(e, g);
    }
};

}  // namespace pymtp::plain

#endif
