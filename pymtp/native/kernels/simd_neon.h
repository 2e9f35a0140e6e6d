// SIMD vectors of floats for 64-bit ARM, with the function names of simd.h. A vector has 8 numbers, in two NEON
// registers. That is the size of AVX2 vectors, so that kernels have the same block sizes on both processors.

#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace pymtp::simd {

struct fvec {
    float32x4_t low;
    float32x4_t high;
};

static inline fvec fload(const float * x)       { return {vld1q_f32(x), vld1q_f32(x + 4)}; }
static inline void fstore(float * y, fvec x)    { vst1q_f32(y, x.low); vst1q_f32(y + 4, x.high); }
static inline fvec fzero()                      { return {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}; }
static inline fvec frepeat(float x)             { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline fvec fload_half(const void * x) {
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *) x));
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
static inline fvec fmul(fvec a, fvec b)         { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
static inline fvec fadd(fvec a, fvec b)         { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
static inline fvec fma(fvec a, fvec b, fvec c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
static inline fvec fnma(fvec a, fvec b, fvec c) {
    return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
// Returns the larger number in each lane; b where a or b is NaN.
static inline fvec fmax(fvec a, fvec b) {
    return {vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low), vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
}
// Returns b in the lanes where m equals c, a in the other lanes.
static inline fvec fselect(fvec a, fvec b, fvec m, fvec c) {
    return {vbslq_f32(vceqq_f32(m.low, c.low), b.low, a.low), vbslq_f32(vceqq_f32(m.high, c.high), b.high, a.high)};
}
// join(half_sums(x), half_sums(x + LANES/2)) returns the sum of the lanes of each of LANES vectors x, in order.
// half_sums() alone returns the sums of LANES/2 vectors, in its lower half.
static inline fvec half_sums(const fvec * x) {
    const float32x4_t a = vpaddq_f32(vaddq_f32(x[0].low, x[0].high), vaddq_f32(x[1].low, x[1].high));
    const float32x4_t b = vpaddq_f32(vaddq_f32(x[2].low, x[2].high), vaddq_f32(x[3].low, x[3].high));
    return {vpaddq_f32(a, b), vdupq_n_f32(0.0f)};
}
static inline fvec join(fvec a, fvec b)         { return {a.low, b.low}; }

constexpr int BYTES = 32;
constexpr int LANES = BYTES/4;  // number of lanes of 32 bits

// Fetches n bytes at x into the cache.
template <int n> static inline void prefetch(const void * x) {
    for (int i = 0; i < n; i += 64) {
        __builtin_prefetch((const char *) x + i);
    }
}

}  // namespace pymtp::simd
