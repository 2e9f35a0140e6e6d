// The kernel for weights in the layout of the GGUF file. It multiplies a row of the weights unit by unit. A unit is
// four vectors of weights, in which each lane of 32 bits has 16 elements (4 in each vector). These elements share one
// scale, whatever the type. So each lane of a unit's integer sums has one scale, and the sums are converted to floats
// only once.
//
// A half is 128 elements of a unit: 32 bytes of each of the four vectors. Vectors of 64 bytes hold two halves side by
// side, so that the same code unpacks vectors of 64 and of 32 bytes. The layouts (plain_superblocks.h) unpack a half to
// four pieces of 32 elements, and transpose() distributes the pieces over the lanes. The activations are quantized as
// in llama.cpp, and stored in the order of the lanes (plain_prepare.h).
//
// The template parameter L is a type of plain_superblocks.h, plain_blocks.h or
// plain_codebooks.h: the layout of the weights.

#pragma once

#include "matmul/rows_kernel.h"
#include "matmul/unroll.h"
#include "simd.h"

#ifdef PYMTP_AVX2

#include "quants.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstring>

namespace pymtp::plain {

using namespace simd;

constexpr int HALVES = BYTES/32;   // number of halves in a unit
constexpr int UNIT   = HALVES*128; // number of elements in a unit

// A unit of a row of the weights. q: the quants, plus the layout's ZERO_POINT, as bytes. scale: the scale of each lane.
// min: the minimum of each lane, which is subtracted from each weight (only for layouts with MINS).
struct weights {
    ivec q[4];
    fvec scale;
    fvec min;
};

// A unit of a row of activations. q: the quants. scale: the scale of each lane. correction: a number for each lane. For
// layouts with MINS, that is the sum of the lane's elements, as a float. For other layouts, it is minus ZERO_POINT
// times the sum of the lane's quants, as an integer from which unit::dot() starts.
struct activations {
    int8_t q[4][BYTES];
    int8_t correction[BYTES];
    float  scale[LANES];
};

// Loads 32 bytes of each half of a unit. The bytes of the second half are `step` bytes after those of the first. half:
// the half to load, where a vector holds only one half (AVX2).
static inline ivec load_halves(const uint8_t * x, int step, int half) {
#if defined(PYMTP_AVX512)
    (void) half;
    const __m256i low  = _mm256_loadu_si256((const __m256i *) x);
    const __m256i high = _mm256_loadu_si256((const __m256i *) (x + step));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
    return load(x + half*step);
#endif
}

// Loads the same 32 bytes for each half, and shifts them right by n bits for the second half. Bits that leave a byte
// enter its neighbour, within 32 bits.
template <int n> static inline ivec load_shifted(const uint8_t * x, int half) {
#if defined(PYMTP_AVX512)
    (void) half;
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) x));
    return _mm512_mask_srli_epi32(both, 0xff00, both, n);
#else
    return half ? _mm256_srli_epi32(load(x), n) : load(x);
#endif
}

// Returns eight bytes for each half: `low` for the first half, `high` for the second.
static inline __m128i bytes_of(uint64_t low, uint64_t high, int half) {
#if defined(PYMTP_AVX512)
    (void) half;
    return _mm_set_epi64x(high, low);
#else
    return _mm_set_epi64x(0, half ? high : low);
#endif
}

static inline __m128i bytes_at(const void * x, int half) {
#if defined(PYMTP_AVX512)
    (void) half;
    return _mm_loadu_si128((const __m128i *) x);
#else
    return _mm_loadl_epi64((const __m128i *) ((const char *) x + 8*half));
#endif
}

// Converts signed bytes, one for each lane, to floats.
static inline fvec float_lanes(__m128i x) { return to_float(PYMTP_MM(cvtepi8_epi32)(x)); }

static inline fvec repeat_half(uint16_t x) {
#if defined(PYMTP_AVX512)
    return _mm512_cvtph_ps(_mm256_set1_epi16(x));
#else
    return _mm256_cvtph_ps(_mm_set1_epi16(x));
#endif
}

// Converts numbers of the blocks (of 32 elements) in a unit to floats, one for each lane. of(i) returns the F16 number
// of block i. order: a byte for each lane of a half, which is 2 times the index of the lane's block in the half.
template <typename F> static inline fvec block_lanes(F of, uint64_t order) {
    __m128i d = _mm_cvtsi32_si128(of(0));
    d = _mm_insert_epi16(d, of(1), 1);
    d = _mm_insert_epi16(d, of(2), 2);
    d = _mm_insert_epi16(d, of(3), 3);
    __m128i lanes = _mm_set_epi64x(0, order);
    lanes = _mm_unpacklo_epi8(lanes, _mm_add_epi8(lanes, _mm_set1_epi8(1)));
#if defined(PYMTP_AVX512)
    d = _mm_insert_epi16(d, of(4), 4);
    d = _mm_insert_epi16(d, of(5), 5);
    d = _mm_insert_epi16(d, of(6), 6);
    d = _mm_insert_epi16(d, of(7), 7);
    const __m256i both = _mm256_set_m128i(_mm_add_epi8(lanes, _mm_set1_epi8(8)), lanes);
    return _mm512_cvtph_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(d), both));
#else
    return _mm256_cvtph_ps(_mm_shuffle_epi8(d, lanes));
#endif
}

#if !defined(PYMTP_AVX512)
// Returns 32 bytes: 0xff for each bit that is one, else 0.
static inline ivec spread_bits(uint32_t bits) {
    const ivec byte = _mm256_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const ivec one  = repeat8(0x8040201008040201);
    return _mm256_cmpeq_epi8(bits_and(lookup16(repeat4(bits), byte), one), one);
}
#endif

#if defined(PYMTP_AVX512)
static inline fvec as_float(ivec x)      { return _mm512_castsi512_ps(x); }
static inline ivec as_int(fvec x)        { return _mm512_castps_si512(x); }
#else
static inline fvec as_float(ivec x)      { return _mm256_castsi256_ps(x); }
static inline ivec as_int(fvec x)        { return _mm256_castps_si256(x); }
#endif

// Multiplies x, the sums of simd::dot(), by y.
static inline ivec times(ivec x, int16_t y) {
#if defined(PYMTP_VNNI)
    return PYMTP_MM(mullo_epi32)(x, repeat4(y));
#else
    return PYMTP_MM(mullo_epi16)(x, repeat2(y));
#endif
}

// Transposes four vectors that hold runs of 16 bytes: afterwards each vector has four bytes of each run, and a lane of
// 32 bits belongs to the same run in all four vectors.
static inline void transpose(ivec * q) {
    const ivec a = PYMTP_MM(unpacklo_epi32)(q[0], q[1]), b = PYMTP_MM(unpackhi_epi32)(q[0], q[1]);
    const ivec c = PYMTP_MM(unpacklo_epi32)(q[2], q[3]), d = PYMTP_MM(unpackhi_epi32)(q[2], q[3]);
    q[0] = PYMTP_MM(unpacklo_epi64)(a, c);
    q[1] = PYMTP_MM(unpackhi_epi64)(a, c);
    q[2] = PYMTP_MM(unpacklo_epi64)(b, d);
    q[3] = PYMTP_MM(unpackhi_epi64)(b, d);
}

// A unit of the weights, with bytes of at most MAX. dot() adds the products of these bytes and activations to `sums`.
template <int MAX> struct unit {
    ivec q[4];

    void set(const ivec * x) {
        for (int j = 0; j < 4; ++j) {
            q[j] = x[j];
        }
    }

    ivec dot(ivec sums, const ivec * x) const {
#if defined(PYMTP_VNNI)
        for (int j = 0; j < 4; ++j) {
            sums = dpbusd(sums, q[j], x[j]);
        }
        return sums;
#else
        const ivec a = add2(maddu1(q[0], x[0]), maddu1(q[1], x[1]));
        const ivec b = add2(maddu1(q[2], x[2]), maddu1(q[3], x[3]));
        return widen(add2(sums, add2(a, b)));
#endif
    }
};

// The sum of two products of 8-bit numbers needs more than 16 bits. So without VNNI, types with 8-bit numbers have no
// ZERO_POINT of 128: their bytes stay signed. unit<255> then multiplies the magnitudes of these bytes, and gives their
// signs to the activations.
#if defined(PYMTP_VNNI)
constexpr int BYTE_ZERO_POINT = 128;
#else
constexpr int BYTE_ZERO_POINT = 0;

#if defined(PYMTP_AVX512)
typedef __mmask64 signs;
static inline signs signs_of(ivec x)           { return _mm512_movepi8_mask(x); }
static inline ivec with_signs(ivec x, signs s) { return _mm512_mask_sub_epi8(x, s, izero(), x); }
#else
typedef ivec signs;
static inline signs signs_of(ivec x)           { return x; }
static inline ivec with_signs(ivec x, signs s) { return _mm256_sign_epi8(x, s); }
#endif

template <> struct unit<255> {
    ivec  q[4];
    signs s[4];

    void set(const ivec * x) {
        for (int j = 0; j < 4; ++j) {
            s[j] = signs_of(x[j]);
            q[j] = abs1(x[j]);
        }
    }

    ivec dot(ivec sums, const ivec * x) const {
        for (int j = 0; j < 4; ++j) {
            sums = add_madd2(sums, maddu1(q[j], with_signs(x[j], s[j])), repeat2(1));
        }
        return sums;
    }
};

// Multiplies signed bytes between -SIGNED_MAX and SIGNED_MAX: the sum of four products fits 16 bits.
constexpr int SIGNED_MAX = 62;

template <> struct unit<SIGNED_MAX> : unit<255> {
    ivec dot(ivec sums, const ivec * x) const {
        for (int j = 0; j < 4; j += 2) {
            sums = add_madd2(sums, add2(maddu1(q[j],     with_signs(x[j],     s[j])),
                                        maddu1(q[j + 1], with_signs(x[j + 1], s[j + 1]))), repeat2(1));
        }
        return sums;
    }
};
#endif

// Returns whether unit<L::MAX> can multiply the bytes of a layout: without VNNI, it adds up 8 products in 16 bits.
template <typename L> constexpr bool fits() {
#if defined(PYMTP_VNNI)
    return true;
#else
    return L::MAX == 255 || L::MAX == SIGNED_MAX || std::max(L::MAX - L::ZERO_POINT, L::ZERO_POINT)*127*8 < 32768;
#endif
}

// How many units ahead the kernel prefetches. This is the best of 4 to 32 for single rows on Zen 5. Without prefetch,
// single rows take twice the time, because the hardware does not prefetch several streams that are as short as rows.
constexpr int64_t PREFETCH_UNITS = 16;

// How many rows ahead the activations are fetched, which come from the second cache where there are many rows. On
// Cascade Lake, 512 rows take 0.90 to 0.96 of the time that they take without.
constexpr int64_t PREFETCH_ROWS = 2;

// Multiplies R rows of the weights, from row i0 on, by all n rows of activations.
template <typename L, int R>
static void multiply_rows(
        int64_t k, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y, int64_t i0) {
    typedef typename L::block block;

    static_assert(fits<L>(), "sums do not fit 16 bits");

    constexpr int64_t UNIT_SIZE = sizeof(block)*UNIT/L::BLOCK;

    fvec acc[ROWS_PER_CALL][R];
    for (int64_t r = 0; r < n; ++r) {
        std::fill(acc[r], acc[r] + R, fzero());
    }

    const int64_t n_units = (k + UNIT - 1)/UNIT;
    for (int64_t u = 0; u < n_units; ++u) {
        unit<L::MAX> units[R];
        fvec         scale[R];
        fvec         min[R];

        // The prefetch continues in the next R rows of the weights.
        const char * next = w + (u + PREFETCH_UNITS)%n_units*UNIT_SIZE + (u + PREFETCH_UNITS)/n_units*R*stride;
        unroll<R>([&](int i) __attribute__((always_inline)) {
            for (int64_t j = 0; j < UNIT_SIZE; j += 64) {
                _mm_prefetch(next + i*stride + j, _MM_HINT_T0);
            }
            const block * b = (const block *) (w + i*stride) + u*UNIT/L::BLOCK;
            block last[UNIT/32];
            if (L::BLOCK < UNIT && k - u*UNIT < UNIT) {
                memset(last, 0, sizeof(last));
                memcpy(last, b, (k - u*UNIT)/L::BLOCK*sizeof(block));
                b = last;
            }
            weights unpacked;
            L::unpack(b, u*HALVES%2, unpacked);
            transpose(unpacked.q);
            units[i].set(unpacked.q);
            scale[i] = unpacked.scale;
            min[i]   = unpacked.min;
        });
        for (int64_t r = 0; r < n; ++r) {
            const activations & a = ((const activations *) x[r])[u];
            if (r + PREFETCH_ROWS < n) {
                prefetch<sizeof(activations)>((const activations *) x[r + PREFETCH_ROWS] + u);
            }

            const ivec q[4]   = { load(a.q[0]), load(a.q[1]), load(a.q[2]), load(a.q[3]) };
            const ivec correction = load(a.correction);
            const fvec d      = fload(a.scale);

            unroll<R>([&](int i) __attribute__((always_inline)) {
                acc[r][i] = fma(
                    to_float(units[i].dot(L::MINS || L::ZERO_POINT == 0 ? izero() : correction, q)),
                    fmul(scale[i], d), acc[r][i]);
                if (L::MINS) {
                    acc[r][i] = fnma(min[i], as_float(correction), acc[r][i]);
                }
            });
        }
    }
    for (int64_t r = 0; r < n; ++r) {
        if constexpr (R == 4) {
            _mm_storeu_ps(y[r] + i0, fsum4(acc[r]));
        } else {
            for (int i = 0; i < R; ++i) {
                y[r][i0 + i] = fsum(acc[r][i]);
            }
        }
    }
}

// Implements rows_kernel::multiply.
template <typename L>
static void multiply(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    constexpr int R = 4;

    int64_t i = 0;
    for (; i + R <= m; i += R) {
        multiply_rows<L, R>(k, w + i*stride, stride, n, x, y, i);
    }
    for (; i < m; ++i) {
        multiply_rows<L, 1>(k, w + i*stride, stride, n, x, y, i);
    }
}

}  // namespace pymtp::plain

#endif
