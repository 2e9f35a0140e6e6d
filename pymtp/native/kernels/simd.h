// SIMD vectors of 64 bytes (AVX-512) or 32 bytes (AVX2), with or without VNNI. All of them have the same functions, so
// that the source of a kernel serves them all.
//
// PYMTP_AVX2 is defined on processors with AVX2 or more: there, this whole file is available. PYMTP_SIMD_F32 is defined
// where the vectors of floats are available: with AVX2, and on ARM with NEON (simd_neon.h). The digit in names like
// repeat1, add2 and repeat4 is the size of an element in bytes. low4 and high4 return the lower and upper 4 bits
// (nibbles) of each byte.

#pragma once

#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PYMTP_AVX2
#define PYMTP_SIMD_F32

#include <immintrin.h>

#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // false warnings inside intrinsics, https://gcc.gnu.org/PR105593
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PYMTP_AVX512
#endif
// With PYMTP_VNNI, dot() adds up products of bytes in sums of 32 bits; without it, in sums of 16 bits.
#if (defined(PYMTP_AVX512) && defined(__AVX512VNNI__)) || (!defined(PYMTP_AVX512) && defined(__AVXVNNI__))
#define PYMTP_VNNI
#endif

namespace pymtp::simd {

// PYMTP_MM(name) is the intrinsic for a whole vector, such as _mm512_add_ps for add_ps.
#if defined(PYMTP_AVX512)
#define PYMTP_MM(name) _mm512_##name

typedef __m512i ivec;
typedef __m512  fvec;
#else
#define PYMTP_MM(name) _mm256_##name

typedef __m256i ivec;
typedef __m256  fvec;
#endif

static inline ivec repeat1(int8_t x)            { return PYMTP_MM(set1_epi8)(x); }
static inline ivec repeat2(int16_t x)           { return PYMTP_MM(set1_epi16)(x); }
static inline ivec repeat4(int32_t x)           { return PYMTP_MM(set1_epi32)(x); }
static inline ivec add4(ivec a, ivec b)         { return PYMTP_MM(add_epi32)(a, b); }
static inline ivec add2(ivec a, ivec b)         { return PYMTP_MM(add_epi16)(a, b); }
template <int n> static inline ivec shift_right2(ivec a) { return PYMTP_MM(srli_epi16)(a, n); }
template <int n> static inline ivec shift_left2 (ivec a) { return PYMTP_MM(slli_epi16)(a, n); }
static inline ivec lookup16(ivec table, ivec i) { return PYMTP_MM(shuffle_epi8)(table, i); }  // each byte of i < 16
static inline ivec madd2(ivec a, ivec b)        { return PYMTP_MM(madd_epi16)(a, b); }
static inline ivec maddu1(ivec u, ivec s)       { return PYMTP_MM(maddubs_epi16)(u, s); }
static inline ivec abs1(ivec a)                 { return PYMTP_MM(abs_epi8)(a); }

static inline fvec fload(const float * x)       { return PYMTP_MM(loadu_ps)(x); }
static inline void fstore(float * y, fvec x)    { PYMTP_MM(storeu_ps)(y, x); }
static inline fvec fzero()                      { return PYMTP_MM(setzero_ps)(); }
static inline fvec frepeat(float x)             { return PYMTP_MM(set1_ps)(x); }
static inline fvec to_float(ivec x)             { return PYMTP_MM(cvtepi32_ps)(x); }
static inline fvec fmul(fvec a, fvec b)         { return PYMTP_MM(mul_ps)(a, b); }
static inline fvec fadd(fvec a, fvec b)         { return PYMTP_MM(add_ps)(a, b); }
static inline fvec fma (fvec a, fvec b, fvec c) { return PYMTP_MM(fmadd_ps)(a, b, c); }
static inline fvec fnma(fvec a, fvec b, fvec c) { return PYMTP_MM(fnmadd_ps)(a, b, c); }  // c - a*b
static inline fvec fmax(fvec a, fvec b)         { return PYMTP_MM(max_ps)(a, b); }        // b where a or b is NaN

#if defined(PYMTP_AVX512)

static inline ivec load(const void * x)         { return _mm512_loadu_si512(x); }
static inline ivec izero()                      { return _mm512_setzero_si512(); }
static inline ivec repeat8(int64_t x)           { return _mm512_set1_epi64(x); }
static inline ivec repeat16(__m128i x)          { return _mm512_broadcast_i32x4(x); }
static inline ivec bits_and(ivec a, ivec b)     { return _mm512_and_si512(a, b); }
static inline ivec bits_or (ivec a, ivec b)     { return _mm512_or_si512(a, b); }
static inline ivec bits_xor(ivec a, ivec b)     { return _mm512_xor_si512(a, b); }
// Returns each byte of a, negated where b is negative. Where b is 0, returns a.
static inline ivec sign1(ivec a, ivec b) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(b), _mm512_setzero_si512(), a);
}

static inline fvec fload_half(const void * x)   { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x)); }
static inline float fsum(fvec x)                { return _mm512_reduce_add_ps(x); }
// Returns the sum of the lanes of each of four vectors. Each sum has the same bits as the result of fsum().
static inline __m128 fsum4(const fvec * x) {
    const __m512 x01 = fadd(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    const __m512 x23 = fadd(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    __m512 y = fadd(_mm512_shuffle_f32x4(x01, x23, 0x88), _mm512_shuffle_f32x4(x01, x23, 0xdd));
    y = fadd(y, _mm512_permute_ps(y, _MM_SHUFFLE(1, 0, 3, 2)));
    y = fadd(y, _mm512_permute_ps(y, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, y));
}
// join(half_sums(x), half_sums(x + LANES/2)) returns the sum of the lanes of each of LANES vectors x, in order.
// half_sums() alone returns partial sums of LANES/2 vectors.
static inline fvec join(fvec a, fvec b) {
    return fadd(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
static inline fvec half_sums(const fvec * x) {
    fvec y[2];
    for (int i = 0; i < 2; ++i, x += 4) {
        const fvec lo = fadd(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const fvec hi = fadd(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        y[i] = fadd(
            _mm512_shuffle_ps(lo, hi, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_ps(lo, hi, _MM_SHUFFLE(3, 2, 3, 2)));
    }
    return join(y[0], y[1]);
}

// Loads LANES/2 F16 numbers, and puts each of them into two neighbouring lanes.
static inline fvec fload_half_twice(const void * x) {
    const __m256i twice = _mm256_setr_epi16(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m256i d     = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) x));
    return _mm512_cvtph_ps(_mm256_permutexvar_epi16(twice, d));
}
// Stores LANES/2 numbers: the sum of each pair of neighbouring lanes.
static inline void fstore_pairs(float * y, fvec x) {
    x = fadd(x, _mm512_movehdup_ps(x));
    _mm256_storeu_ps(y, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, x)));
}

#else

static inline ivec load(const void * x)         { return _mm256_loadu_si256((const __m256i *) x); }
static inline ivec izero()                      { return _mm256_setzero_si256(); }
static inline ivec repeat8(int64_t x)           { return _mm256_set1_epi64x(x); }
static inline ivec repeat16(__m128i x)          { return _mm256_broadcastsi128_si256(x); }
static inline ivec bits_and(ivec a, ivec b)     { return _mm256_and_si256(a, b); }
static inline ivec bits_or (ivec a, ivec b)     { return _mm256_or_si256(a, b); }
static inline ivec bits_xor(ivec a, ivec b)     { return _mm256_xor_si256(a, b); }
// Returns each byte of a, negated where b is negative. Where b is 0, returns 0.
static inline ivec sign1(ivec a, ivec b)        { return _mm256_sign_epi8(a, b); }

static inline fvec fload_half(const void * x)   { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x)); }
static inline float fsum(fvec x) {
    __m128 y = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    y = _mm_add_ss(y, _mm_movehdup_ps(y));
    return _mm_cvtss_f32(y);
}
static inline __m128 fsum4(const fvec * x) {
    const __m256 x01 = fadd(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
    const __m256 x23 = fadd(_mm256_permute2f128_ps(x[2], x[3], 0x20), _mm256_permute2f128_ps(x[2], x[3], 0x31));
    __m256 y = fadd(
        _mm256_shuffle_ps(x01, x23, _MM_SHUFFLE(1, 0, 1, 0)), _mm256_shuffle_ps(x01, x23, _MM_SHUFFLE(3, 2, 3, 2)));
    y = fadd(y, _mm256_movehdup_ps(y));
    return _mm256_castps256_ps128(_mm256_permutevar8x32_ps(y, _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6)));
}
static inline fvec join(fvec a, fvec b) {
    return fadd(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
static inline fvec half_sums(const fvec * x) {
    return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
}

static inline fvec fload_half_twice(const void * x) {
    const __m128i d = _mm_loadl_epi64((const __m128i *) x);
    return _mm256_cvtph_ps(_mm_unpacklo_epi16(d, d));
}
static inline void fstore_pairs(float * y, fvec x) {
    x = fadd(x, _mm256_movehdup_ps(x));
    _mm_storeu_ps(y, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6))));
}

#endif

constexpr int BYTES = sizeof(ivec);
constexpr int LANES = BYTES/4;  // number of lanes of 32 bits

// These functions return a vector that repeats the 4, 8 or 16 bytes at x.
static inline ivec repeat4_at (const void * x) { int32_t v; memcpy(&v, x, sizeof(v)); return repeat4(v); }
static inline ivec repeat8_at (const void * x) { int64_t v; memcpy(&v, x, sizeof(v)); return repeat8(v); }
static inline ivec repeat16_at(const void * x) { return repeat16(_mm_loadu_si128((const __m128i *) x)); }

// prefetch() fetches n bytes at x into the cache. prefetch_ahead() fetches n bytes at x + PREFETCH_BYTES: weights that
// the kernel will read later. The hardware alone does not prefetch far enough ahead where a kernel computes products of
// several rows between two loads of weights. The table shows the times of 1, 2, 4 and 8 rows of activations, relative
// to only reading the weights, for several values of PREFETCH_BYTES (Q4_0, 5120 x 17408, one core of an AMD EPYC, Zen
// 5):
//      0: 1.3 1.8 3.7 5.3    4096: 1.4 1.5 1.7 2.3    8192: 1.3 1.3 1.3 2.2    16384: 1.4 1.4 1.3 2.2
constexpr int PREFETCH_BYTES = 8192;

template <int n> static inline void prefetch(const void * x) {
    for (int i = 0; i < n; i += 64) {
        _mm_prefetch((const char *) x + i, _MM_HINT_T0);
    }
}
template <int n> static inline void prefetch_ahead(const void * x) { prefetch<n>((const char *) x + PREFETCH_BYTES); }

static inline ivec low4 (ivec x) { return bits_and(x, repeat1(15)); }
static inline ivec high4(ivec x) { return bits_and(shift_right2<4>(x), repeat1(15)); }

// dot() adds the products of unsigned bytes u and signed bytes s to `sums`. With VNNI, sums have 32 bits. Without VNNI,
// they have 16 bits, and each dot() adds two products to a sum: all products that are added to one sum must fit 16
// bits, in any order. widen() adds up neighbouring lanes of 16 bits to lanes of 32 bits; with VNNI it changes nothing.
// add_scaled() adds sums*scale to acc. A scale must not be negative, and must be placed in its lane by scale_index().
// The sums must fit 16 bits, even with VNNI, where they have 32.
#if defined(PYMTP_VNNI)

#if defined(PYMTP_AVX512)
static inline ivec dpbusd(ivec acc, ivec u, ivec s) { return _mm512_dpbusd_epi32(acc, u, s); }
static inline ivec dpwssd(ivec acc, ivec a, ivec b) { return _mm512_dpwssd_epi32(acc, a, b); }
#else
static inline ivec dpbusd(ivec acc, ivec u, ivec s) { return _mm256_dpbusd_avx_epi32(acc, u, s); }
static inline ivec dpwssd(ivec acc, ivec a, ivec b) { return _mm256_dpwssd_avx_epi32(acc, a, b); }
#endif
static inline ivec dot(ivec sums, ivec u, ivec s)            { return dpbusd(sums, u, s); }
static inline ivec widen(ivec sums)                          { return sums; }
static inline ivec add_madd2(ivec acc, ivec a, ivec b)       { return dpwssd(acc, a, b); }  // lanes of 16 bits

#else

static inline ivec dot(ivec sums, ivec u, ivec s)            { return add2(sums, maddu1(u, s)); }
static inline ivec widen(ivec sums)                          { return madd2(sums, repeat2(1)); }
static inline ivec add_madd2(ivec acc, ivec a, ivec b)       { return add4(acc, madd2(a, b)); }

#endif

// Does the same as dot(), but with sums of 32 bits even without VNNI: for weights of 8 bits, with larger products.
// Without VNNI, the sum of two neighbouring products must still fit 16 bits.
static inline ivec dot_wide(ivec acc, ivec u, ivec s) {
#if defined(PYMTP_VNNI)
    return dpbusd(acc, u, s);
#else
    return add4(acc, madd2(maddu1(u, s), repeat2(1)));
#endif
}

static inline ivec add_scaled(ivec acc, ivec sums, ivec scale) { return add_madd2(acc, sums, scale); }

// Returns four indexes (one per byte) for lookup16(). They put byte number `byte` of a table into a lane of 32 bits, as
// the scale that add_scaled() takes. The bytes of the table must not be negative.
static constexpr int32_t scale_index(int byte) {
#if defined(PYMTP_VNNI)
    return 0x80808000 | byte;               // a sum fits 16 bits: the upper half is only its sign, without a scale
#else
    return 0x80008000 | byte | byte << 16;  // each half of the lane is a sum, and gets the scale
#endif
}

}  // namespace pymtp::simd

#elif defined(__aarch64__) && defined(__ARM_NEON)
#define PYMTP_SIMD_F32

#include "simd_neon.h"

#endif
