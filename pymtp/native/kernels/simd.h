// Vectors of 64 bytes (AVX-512) or 32 bytes (AVX2), with VNNI and without: one source of a kernel serves all of them.
//
// PYMTP_AVX2 is defined with AVX2 or more: all of this file is there. PYMTP_SIMD_F32 is defined where the vectors of
// floats are there, which NEON has, too (simd_neon.h). The digit of repeat1, add2, repeat4 is the size of an element in
// bytes; low4 and high4 are nibbles.

#pragma once

#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PYMTP_AVX2
#define PYMTP_SIMD_F32

#include <immintrin.h>

#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // inside intrinsics, https://gcc.gnu.org/PR105593
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PYMTP_AVX512
#endif
// the sums of products of bytes have 32 bits
#if (defined(PYMTP_AVX512) && defined(__AVX512VNNI__)) || (!defined(PYMTP_AVX512) && defined(__AVXVNNI__))
#define PYMTP_VNNI
#endif

namespace pymtp::simd {

#if defined(PYMTP_AVX512)

typedef __m512i ivec;
typedef __m512  fvec;

static inline ivec load(const void * x)         { return _mm512_loadu_si512(x); }
static inline ivec izero()                      { return _mm512_setzero_si512(); }
static inline ivec repeat1(int8_t x)            { return _mm512_set1_epi8(x); }
static inline ivec repeat2(int16_t x)           { return _mm512_set1_epi16(x); }
static inline ivec repeat4(int32_t x)           { return _mm512_set1_epi32(x); }
static inline ivec repeat8(int64_t x)           { return _mm512_set1_epi64(x); }
static inline ivec repeat16(__m128i x)          { return _mm512_broadcast_i32x4(x); }
static inline ivec add4(ivec a, ivec b)         { return _mm512_add_epi32(a, b); }
static inline ivec add2(ivec a, ivec b)         { return _mm512_add_epi16(a, b); }
static inline ivec bits_and(ivec a, ivec b)     { return _mm512_and_si512(a, b); }
static inline ivec bits_or (ivec a, ivec b)     { return _mm512_or_si512(a, b); }
static inline ivec bits_xor(ivec a, ivec b)     { return _mm512_xor_si512(a, b); }
template <int n> static inline ivec shift_right2(ivec a) { return _mm512_srli_epi16(a, n); }
template <int n> static inline ivec shift_left2 (ivec a) { return _mm512_slli_epi16(a, n); }
static inline ivec lookup16(ivec table, ivec i) { return _mm512_shuffle_epi8(table, i); }   // i < 16
static inline ivec madd2(ivec a, ivec b)        { return _mm512_madd_epi16(a, b); }
static inline ivec maddu1(ivec u, ivec s)       { return _mm512_maddubs_epi16(u, s); }
static inline ivec abs1(ivec a)                 { return _mm512_abs_epi8(a); }
// a with the sign of b; a where b is 0
static inline ivec sign1(ivec a, ivec b) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(b), _mm512_setzero_si512(), a);
}

static inline fvec fload(const float * x)       { return _mm512_loadu_ps(x); }
static inline void fstore(float * y, fvec x)    { _mm512_storeu_ps(y, x); }
static inline fvec fzero()                      { return _mm512_setzero_ps(); }
static inline fvec frepeat(float x)             { return _mm512_set1_ps(x); }
static inline fvec fload_half(const void * x)   { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x)); }
static inline fvec to_float(ivec x)             { return _mm512_cvtepi32_ps(x); }
static inline fvec fmul(fvec a, fvec b)         { return _mm512_mul_ps(a, b); }
static inline fvec fadd(fvec a, fvec b)         { return _mm512_add_ps(a, b); }
static inline fvec fma (fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
static inline fvec fnma(fvec a, fvec b, fvec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a*b
static inline fvec fmax(fvec a, fvec b)         { return _mm512_max_ps(a, b); }            // b where a or b is NaN
static inline float fsum(fvec x)                { return _mm512_reduce_add_ps(x); }
// the sums of four vectors; each has the bits of fsum()
static inline __m128 fsum4(const fvec * x) {
    const __m512 x01 = fadd(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    const __m512 x23 = fadd(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    __m512 y = fadd(_mm512_shuffle_f32x4(x01, x23, 0x88), _mm512_shuffle_f32x4(x01, x23, 0xdd));
    y = fadd(y, _mm512_permute_ps(y, _MM_SHUFFLE(1, 0, 3, 2)));
    y = fadd(y, _mm512_permute_ps(y, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, y));
}
// half_sums() sums up LANES/2 vectors. join() of two of its results has the sums of LANES vectors, in order.
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

// the F16 numbers at x, each in two neighbouring lanes
static inline fvec fload_half_twice(const void * x) {
    const __m256i twice = _mm256_setr_epi16(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m256i d     = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) x));
    return _mm512_cvtph_ps(_mm256_permutexvar_epi16(twice, d));
}
// stores the sums of neighbouring lanes
static inline void fstore_pairs(float * y, fvec x) {
    x = fadd(x, _mm512_movehdup_ps(x));
    _mm256_storeu_ps(y, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, x)));
}

#else

typedef __m256i ivec;
typedef __m256  fvec;

static inline ivec load(const void * x)         { return _mm256_loadu_si256((const __m256i *) x); }
static inline ivec izero()                      { return _mm256_setzero_si256(); }
static inline ivec repeat1(int8_t x)            { return _mm256_set1_epi8(x); }
static inline ivec repeat2(int16_t x)           { return _mm256_set1_epi16(x); }
static inline ivec repeat4(int32_t x)           { return _mm256_set1_epi32(x); }
static inline ivec repeat8(int64_t x)           { return _mm256_set1_epi64x(x); }
static inline ivec repeat16(__m128i x)          { return _mm256_broadcastsi128_si256(x); }
static inline ivec add4(ivec a, ivec b)         { return _mm256_add_epi32(a, b); }
static inline ivec add2(ivec a, ivec b)         { return _mm256_add_epi16(a, b); }
static inline ivec bits_and(ivec a, ivec b)     { return _mm256_and_si256(a, b); }
static inline ivec bits_or (ivec a, ivec b)     { return _mm256_or_si256(a, b); }
static inline ivec bits_xor(ivec a, ivec b)     { return _mm256_xor_si256(a, b); }
template <int n> static inline ivec shift_right2(ivec a) { return _mm256_srli_epi16(a, n); }
template <int n> static inline ivec shift_left2 (ivec a) { return _mm256_slli_epi16(a, n); }
static inline ivec lookup16(ivec table, ivec i) { return _mm256_shuffle_epi8(table, i); }   // i < 16
static inline ivec madd2(ivec a, ivec b)        { return _mm256_madd_epi16(a, b); }
static inline ivec maddu1(ivec u, ivec s)       { return _mm256_maddubs_epi16(u, s); }
static inline ivec abs1(ivec a)                 { return _mm256_abs_epi8(a); }
// a with the sign of b; 0 where b is 0
static inline ivec sign1(ivec a, ivec b)        { return _mm256_sign_epi8(a, b); }

static inline fvec fload(const float * x)       { return _mm256_loadu_ps(x); }
static inline void fstore(float * y, fvec x)    { _mm256_storeu_ps(y, x); }
static inline fvec fzero()                      { return _mm256_setzero_ps(); }
static inline fvec frepeat(float x)             { return _mm256_set1_ps(x); }
static inline fvec fload_half(const void * x)   { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x)); }
static inline fvec to_float(ivec x)             { return _mm256_cvtepi32_ps(x); }
static inline fvec fmul(fvec a, fvec b)         { return _mm256_mul_ps(a, b); }
static inline fvec fadd(fvec a, fvec b)         { return _mm256_add_ps(a, b); }
static inline fvec fma (fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
static inline fvec fnma(fvec a, fvec b, fvec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a*b
static inline fvec fmax(fvec a, fvec b)         { return _mm256_max_ps(a, b); }            // b where a or b is NaN
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
constexpr int LANES = BYTES/4;  // lanes of 32 bits

// the 4, 8, 16 bytes at x, repeated
static inline ivec repeat4_at (const void * x) { int32_t v; memcpy(&v, x, sizeof(v)); return repeat4(v); }
static inline ivec repeat8_at (const void * x) { int64_t v; memcpy(&v, x, sizeof(v)); return repeat8(v); }
static inline ivec repeat16_at(const void * x) { return repeat16(_mm_loadu_si128((const __m128i *) x)); }

// prefetch() fetches n bytes at x into the cache, prefetch_ahead() n bytes of the weights that are read PREFETCH_BYTES
// later. The hardware does not prefetch far enough where products of several rows lie between two loads of weights.
// This is the time of 1, 2, 4, 8 rows of Q4_0 (5120 x 17408, one core of an AMD EPYC of Zen 5) relative to a read of
// the weights, by the distance in bytes:
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

// dot() adds products of unsigned bytes u and signed bytes s to sums. The sums have 32 bits with VNNI, and 16 bits
// without: then the products of a lane, two from each dot(), must fit 16 bits in any order. widen() adds up lanes of 16
// bits to lanes of 32. add_scaled() adds sums times scales to acc. A scale is not negative and lies where scale_index()
// puts it, and a sum must fit 16 bits, also where it has 32.
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
static inline ivec add_madd2(ivec acc, ivec a, ivec b)       { return dpwssd(acc, a, b); }  // a, b: lanes of 16 bits

#else

static inline ivec dot(ivec sums, ivec u, ivec s)            { return add2(sums, maddu1(u, s)); }
static inline ivec widen(ivec sums)                          { return madd2(sums, repeat2(1)); }
static inline ivec add_madd2(ivec acc, ivec a, ivec b)       { return add4(acc, madd2(a, b)); }

#endif

// Like dot(), with sums of 32 bits: for products of 8 by 8 bits. Without VNNI the sum of two neighbours must fit 16
// bits.
static inline ivec dot_wide(ivec acc, ivec u, ivec s) {
#if defined(PYMTP_VNNI)
    return dpbusd(acc, u, s);
#else
    return add4(acc, madd2(maddu1(u, s), repeat2(1)));
#endif
}

static inline ivec add_scaled(ivec acc, ivec sums, ivec scale) { return add_madd2(acc, sums, scale); }

// Returns the index for lookup16() that makes a byte the scale of a lane of 32 bits, for add_scaled(). Bytes are not
// negative.
static constexpr int32_t scale_index(int byte) {
#if defined(PYMTP_VNNI)
    return 0x80808000 | byte;               // sums fit 16 bits: the upper half holds only the sign
#else
    return 0x80008000 | byte | byte << 16;  // each half is a sum
#endif
}

}  // namespace pymtp::simd

#elif defined(__aarch64__) && defined(__ARM_NEON)
#define PYMTP_SIMD_F32

#include "simd_neon.h"

#endif
