// The layouts of IQ1_S to IQ3_S. An index of 8 to 11 bits chooses an entry of a table: the magnitudes of 8 elements
// (IQ2), of 4 elements (IQ3), or 8 elements of -1, 0 and 1 (IQ1). The functions below unpack a unit as those of
// plain_superblocks.h do. A block is 32 elements of a superblock.

#pragma once

#include "matmul/plain_superblocks.h"

#ifdef PYMTP_AVX2

#define GGML_COMMON_IMPL_CPP  // the tables
#include "ggml-common.h"

namespace pymtp::plain {

constexpr int BLOCKS = UNIT/32;  // number of blocks in a unit

// Looks up a block: four entries of 8 bytes, or eight entries of 4 bytes. Blends of loads that broadcast take less time
// than insertions of elements, because insertions need the execution port for shuffles.
template <typename I> static inline __m256i look_up(const uint64_t * table, const I * i) {
    // Four indexes of 16 bits take one load, because loads limit the speed: a row of IQ2_XS takes 0.86 of the time.
    uint64_t four = 0;
    memcpy(&four, i, sizeof(I) == 2 ? sizeof(four) : 0);
    const auto entry = [&](int j) {
        return _mm256_set1_epi64x(table[sizeof(I) == 2 ? (uint16_t) (four >> 16*j) : i[j]]);
    };
    return _mm256_blend_epi32(
        _mm256_blend_epi32(entry(0), entry(1), 0x0c), _mm256_blend_epi32(entry(2), entry(3), 0xc0), 0xf0);
}
template <typename I> static inline __m256i look_up(const uint32_t * table, const I * i) {
    const auto pair = [&](int j, int mask) {
        return _mm256_blend_epi32(_mm256_set1_epi32(table[i[j]]), _mm256_set1_epi32(table[i[j + 1]]), mask);
    };
    return _mm256_blend_epi32(_mm256_blend_epi32(pair(0, 0x02), pair(2, 0x08), 0x0c),
                              _mm256_blend_epi32(pair(4, 0x20), pair(6, 0x80), 0xc0), 0xf0);
}

// Looks up vector j of a unit. index: the indexes of the unit's first block. step: number of indexes from one block to
// the next.
template <typename T, typename I> static inline ivec look_up(const T * table, const I * index, int step, int j) {
#if defined(PYMTP_AVX512)
    return _mm512_inserti64x4(_mm512_castsi256_si512(
        look_up(table, index + j*step)), look_up(table, index + (j + 4)*step), 1);
#else
    return look_up(table, index + j*step);
#endif
}

// The signs of the elements of a unit, a bit for each: one where the element is negative.
struct sign_bits {
#if defined(PYMTP_AVX512)
    uint64_t vectors[4];
#else
    uint32_t vectors[4];
#endif

    // bits: 32 bits for each block, in order.
    explicit sign_bits(__m256i bits) {
#if defined(PYMTP_AVX512)
        bits = _mm256_permutevar8x32_epi32(bits, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *) vectors, bits);
#else
        _mm_storeu_si128((__m128i *) vectors, _mm256_castsi256_si128(bits));
#endif
    }

    // Gives the magnitudes q of vector j their signs, and adds `zero`.
    ivec apply(ivec q, ivec zero, int j) const {
#if defined(PYMTP_AVX512)
        return _mm512_mask_sub_epi8(_mm512_add_epi8(zero, q), vectors[j], zero, q);
#else
        const ivec all = spread_bits(vectors[j]);
        return _mm256_add_epi8(zero, _mm256_sub_epi8(bits_xor(q, all), all));
#endif
    }
};

// Returns bytes of 8 signs. Of each, `seven` has the first seven; the eighth makes the number of negative signs even.
static inline __m256i even_signs(__m256i seven) {
    const __m256i odd   = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i mask  = _mm256_set1_epi8(15);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(seven, 4), mask);
    return _mm256_or_si256(seven, _mm256_xor_si256(
        _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, mask)), _mm256_shuffle_epi8(odd, upper)));
}

// Returns the signs of words that have four times seven signs in their lower 28 bits.
static inline sign_bits signs_of_words(__m256i words) {
    __m256i seven = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
    seven = _mm256_or_si256(seven, _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_set1_epi32(0x7f00)));
    seven = _mm256_or_si256(seven, _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_set1_epi32(0x7f0000)));
    seven = _mm256_or_si256(seven, _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_set1_epi32(0x7f000000)));
    return sign_bits(even_signs(seven));
}

// Puts the numbers of the blocks, which have 32 bits, in the order of the lanes, and converts them to floats.
static inline fvec lanes_of_words(__m256i x) {
#if defined(PYMTP_AVX512)
    const __m512i both = _mm512_castsi256_si512(x);
    return to_float(_mm512_shuffle_i32x4(both, both, 0x50));
#else
    return to_float(_mm256_permute2x128_si256(x, x, 0));
#endif
}

// Does the same with numbers of 8 bits.
static inline fvec lanes_of_bytes(__m128i x) { return float_lanes(_mm_shuffle_epi32(x, 0x50)); }

// Returns 2*x + 1 for bytes x.
static inline __m128i twice_plus_one(__m128i x) {
    return _mm_add_epi8(_mm_add_epi8(x, x), _mm_set1_epi8(1));
}

// Loads n bytes of each half.
template <int n> static inline __m128i load_bytes(const uint8_t * x, int half) {
    uint64_t bytes = 0;
    memcpy(&bytes, x + n*half, n*HALVES);
    return _mm_cvtsi64_si128(bytes);
}

// Returns the nibbles of the first 8 bytes of x, in order.
static inline __m128i nibbles_of(__m128i x) {
    const __m128i mask = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(x, mask), _mm_and_si128(_mm_srli_epi16(x, 4), mask));
}

// The indexes of a unit, in lanes of 16 bits, where an entry has 8 elements: four lanes for each block.
// bytes_in_lanes() loads the lower 8 bits of each. repeat_bytes() repeats a byte for the lanes of its block, and
// repeat_words() repeats 16 bits.
static inline ivec bytes_in_lanes(const uint8_t * x) {
#if defined(PYMTP_AVX512)
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *) x));
#else
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *) x));
#endif
}
static inline ivec repeat_bytes(__m128i x) {
    return lookup16(PYMTP_MM(cvtepu8_epi64)(x),
        repeat16(_mm_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 8, -1, 8, -1, 8, -1, 8, -1)));
}
static inline ivec repeat_words(__m128i x) {
    return lookup16(PYMTP_MM(cvtepu16_epi64)(x),
        repeat16(_mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9)));
}

// Multiplies lanes of 16 bits. factors: those of the four lanes of a block.
static inline ivec times4(ivec x, uint64_t factors) { return PYMTP_MM(mullo_epi16)(x, repeat8(factors)); }

struct stored_indexes {
    uint16_t of[UNIT/8];

    explicit stored_indexes(ivec x) { memcpy(of, &x, sizeof(of)); }
};

// The scale of a block or run is d times an odd number.
static inline fvec odd_scales(fvec odd, ggml_half d, float factor) {
    return fmul(odd, frepeat(half_to_float(d)*factor));
}

// Layouts with signed magnitudes of at most 62.
struct codebook : by_superblock {
#if defined(PYMTP_VNNI)
    static constexpr int  MAX        = 127;
    static constexpr int  ZERO_POINT = 64;
#else
    static constexpr int  MAX        = SIGNED_MAX;
    static constexpr int  ZERO_POINT = 0;
#endif
    static constexpr bool MINS       = false;
};

// Looks up the magnitudes, and gives them their signs. zero: the layout's ZERO_POINT.
template <typename T, typename I>
static inline void look_up_signed(
        weights & w, const T * table, const I * index, int step, const sign_bits & signs, int zero) {
    for (int j = 0; j < 4; ++j) {
        w.q[j] = signs.apply(look_up(table, index, step, j), repeat1(zero), j);
    }
}

struct iq2_xxs : codebook {
    typedef block_iq2_xxs block;

    static inline void unpack(const block * b, int half, weights & w) {
        // a block: four indexes of 8 bits, then four times seven signs, then a scale of 4 bits
        const uint8_t * index = (const uint8_t *) b->qs + 32*half;
#if defined(PYMTP_AVX512)
        const __m256i words = _mm512_cvtepi64_epi32(_mm512_srli_epi64(_mm512_loadu_si512(index), 32));
#else
        const __m256i words = _mm256_permutevar8x32_epi32(load(index), _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7));
#endif
        look_up_signed(w, iq2xxs_grid, index, 8, signs_of_words(words), ZERO_POINT);
        w.scale = odd_scales(lanes_of_words(
            _mm256_or_si256(_mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1), _mm256_set1_epi32(1))), b->d, 0.125f);
    }
};

struct iq2_xs : codebook {
    typedef block_iq2_xs block;

    static inline void unpack(const block * b, int half, weights & w) {
        // for 8 elements: an index of 9 bits, and seven signs
        const ivec both = load(b->qs + 16*half);
        const stored_indexes index(bits_and(both, repeat2(511)));
#if defined(PYMTP_AVX512)
        const __m256i seven = _mm512_cvtepi16_epi8(_mm512_srli_epi16(both, 9));
#else
        const __m256i words = _mm256_srli_epi16(both, 9);
        const __m256i seven = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
#endif
        look_up_signed(w, iq2xs_grid, index.of, 4, sign_bits(even_signs(seven)), ZERO_POINT);
        w.scale = odd_scales(float_lanes(in_lane_order(
            twice_plus_one(nibbles_of(load_bytes<4>(b->scales, half))))), b->d, 0.125f);
    }
};

struct iq2_s : codebook {
    typedef block_iq2_s block;

    static inline void unpack(const block * b, int half, weights & w) {
        const uint8_t * signs = b->qs + QK_K/8 + 16*half;
        // the upper two bits of four indexes are in a byte
        const ivec high = times4(repeat_bytes(load_bytes<4>(b->qh, half)), 0x0004001000400100);
        const stored_indexes index(
            bits_or(bytes_in_lanes(b->qs + 16*half), bits_and(high, repeat2(0x300))));
#if defined(PYMTP_AVX512)
        const __m256i bits = _mm256_loadu_si256((const __m256i *) signs);
#else
        const __m256i bits = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) signs));
#endif
        look_up_signed(w, iq2s_grid, index.of, 4, sign_bits(bits), ZERO_POINT);
        w.scale = odd_scales(float_lanes(in_lane_order(
            twice_plus_one(nibbles_of(load_bytes<4>(b->scales, half))))), b->d, 0.125f);
    }
};

struct iq3_xxs : codebook {
    typedef block_iq3_xxs block;

    static inline void unpack(const block * b, int half, weights & w) {
        // for each block: four times seven signs, then a scale of 4 bits
#if defined(PYMTP_AVX512)
        const __m256i words = _mm256_loadu_si256((const __m256i *) (b->qs + QK_K/4));
#else
        const __m256i words = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) (b->qs + QK_K/4 + 16*half)));
#endif
        look_up_signed(w, iq3xxs_grid, b->qs + 32*half, 8, signs_of_words(words), ZERO_POINT);
        w.scale = odd_scales(lanes_of_words(
            _mm256_or_si256(_mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1), _mm256_set1_epi32(1))), b->d, 0.25f);
    }
};

struct iq3_s : by_superblock {
    typedef block_iq3_s block;

    static constexpr int  MAX        = 31;
    static constexpr int  ZERO_POINT = 16;
    static constexpr bool MINS       = false;

    static inline void unpack(const block * b, int half, weights & w) {
        uint16_t index[UNIT/4];
        // the ninth bits of the indexes of a block are in a byte
        for (int i = 0; i < 2; ++i) {
            const int first = BLOCKS/2*i + 4*half;
#if defined(PYMTP_AVX512)
            uint32_t ninth;
            memcpy(&ninth, b->qh + first, sizeof(ninth));
            const ivec high = _mm512_maskz_set1_epi16(ninth, 256);
#else
            uint16_t ninth;
            memcpy(&ninth, b->qh + first, sizeof(ninth));
            const ivec each = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1,
                                               1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
            const ivec factors = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
            const ivec high = bits_and(
                _mm256_mullo_epi16(lookup16(repeat2(ninth), each), factors), repeat2(256));
#endif
            const ivec all = bits_or(bytes_in_lanes(b->qs + 8*first), high);
            memcpy(index + 8*BLOCKS/2*i, &all, sizeof(all));
        }
#if defined(PYMTP_AVX512)
        const __m256i bits = _mm256_loadu_si256((const __m256i *) b->signs);
#else
        const __m256i bits = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) (b->signs + 16*half)));
#endif
        look_up_signed(w, iq3s_grid, index, 8, sign_bits(bits), ZERO_POINT);
        w.scale = odd_scales(lanes_of_bytes(
            twice_plus_one(nibbles_of(load_bytes<2>(b->scales, half)))), b->d, 1.0f);
    }
};

// IQ1_S and IQ1_M add 1/8 to entries of -1, 0 and 1, or subtract it. Eight times that, plus ZERO_POINT, is a byte.
struct ones : by_superblock {
    static constexpr int  MAX        = 18;
    static constexpr int  ZERO_POINT = 9;
    static constexpr bool MINS       = false;

    // rest: ZERO_POINT + 1, or ZERO_POINT - 1 where 1/8 is subtracted.
    static inline ivec bytes(ivec entries, ivec rest) {
        return PYMTP_MM(add_epi8)(bits_and(shift_left2<3>(entries), repeat1((int8_t) 0xf8)), rest);
    }
};

struct iq1_s : ones {
    typedef block_iq1_s block;

    static inline void unpack(const block * b, int half, weights & w) {
        // for each block, 16 bits: four times the upper three bits of an index, a scale of three bits, the sign of 1/8
        const __m128i blocks = HALVES == 2 ? _mm_loadu_si128((const __m128i *) b->qh) :
                                             _mm_loadl_epi64((const __m128i *) (b->qh + 4*half));
        const ivec words = repeat_words(blocks);
        const ivec last  = bits_and(shift_right2<1>(words), repeat8(0x0700000000000000));
        const ivec high  = bits_and(times4(words, 0x0000000400200100), repeat8(0x0000070007000700));
        const stored_indexes index(bits_or(bytes_in_lanes(b->qs + 16*half), bits_or(high, last)));

        // a byte for each block: of vector j, the two halves have blocks j and j + 4
        const __m128i negative = _mm_srai_epi16(blocks, 15);
        const __m128i minus    = _mm_packs_epi16(negative, negative);
        const __m128i rest     = _mm_add_epi8(_mm_set1_epi8(ZERO_POINT + 1), _mm_add_epi8(minus, minus));
#if defined(PYMTP_AVX512)
        const ivec rests = _mm512_inserti64x4(_mm512_castsi256_si512(
            _mm256_broadcastsi128_si256(rest)), _mm256_broadcastsi128_si256(_mm_srli_si128(rest, 4)), 1);
#else
        const ivec rests = repeat16(rest);
#endif
        for (int j = 0; j < 4; ++j) {
            w.q[j] = bytes(look_up(iq1s_grid, index.of, 4, j), lookup16(rests, repeat1(j)));
        }
        const __m128i scales = _mm_and_si128(_mm_srli_epi16(blocks, 12), _mm_set1_epi16(7));
        w.scale = odd_scales(lanes_of_bytes(twice_plus_one(_mm_packus_epi16(scales, scales))), b->d, 0.125f);
    }
};

struct iq1_m : ones {
    typedef block_iq1_m block;

    static inline void unpack(const block * b, int half, weights & w) {
        // for each index, 4 bits: its upper three bits, the sign of 1/8
        const __m128i nibbles = HALVES == 2 ? _mm_loadu_si128((const __m128i *) b->qh) :
                                              _mm_loadl_epi64((const __m128i *) (b->qh + 8*half));
        const ivec each = repeat16(_mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 8, -1, 8, -1, 9, -1, 9, -1));
        const ivec high = times4(lookup16(PYMTP_MM(cvtepu16_epi64)(nibbles), each), 0x0010010000100100);
        const stored_indexes index(bits_or(bytes_in_lanes(b->qs + 16*half), bits_and(high, repeat2(0x700))));
        // The rest of each index: as 16 bits, then as a byte, then repeated for the 8 elements of the entry. A half of
        // vector j has the indexes from 4*j on.
        const ivec words = PYMTP_MM(sub_epi16)(
            repeat2(ZERO_POINT + 1), bits_and(shift_right2<10>(high), repeat2(2)));
        const __m256i first_four = _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
#if defined(PYMTP_AVX512)
        const __m512i all      = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(words));
        const ivec    rests    = _mm512_shuffle_i32x4(all, all, 0x50);
        const ivec    of_entry = _mm512_broadcast_i64x4(first_four);
#else
        const ivec rests    = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x88);
        const ivec of_entry = first_four;
#endif
        for (int j = 0; j < 4; ++j) {
            const ivec rest = lookup16(rests, PYMTP_MM(add_epi8)(of_entry, repeat1(4*j)));
            w.q[j] = bytes(look_up(iq1s_grid, index.of, 4, j), rest);
        }
        // for each four runs, 16 bits: four scales of three bits, and a part of the superblock's scale
        uint64_t parts;
        memcpy(&parts, b->scales, sizeof(parts));
        const ggml_half d = (parts >> 12 & 0xf) | (parts >> 24 & 0xf0) | (parts >> 36 & 0xf00) | (parts >> 48 & 0xf000);
        const __m256i to_lane = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
        const __m256i at9 = _mm256_mullo_epi16(_mm256_shuffle_epi8(_mm256_set1_epi64x(parts >> 32*half), to_lane),
            _mm256_set1_epi64x(0x0001000800400200));
        const __m256i scales = _mm256_and_si256(_mm256_srli_epi16(at9, 9), _mm256_set1_epi16(7));
        const __m128i in_order =
            _mm_packus_epi16(_mm256_castsi256_si128(scales), _mm256_extracti128_si256(scales, 1));
        w.scale = odd_scales(float_lanes(in_lane_order(twice_plus_one(in_order))), d, 0.125f);
    }
};

}  // namespace pymtp::plain

#endif
