// The kernel for weights in the layout of the GGUF file on 64-bit ARM. It unpacks a unit of a row of the weights (256
// elements) once, to signed bytes in 16 registers, and multiplies them by each row of activations. The bytes stay in
// their order, and the activations are quantized as in llama.cpp.
//
// The template parameter L is a type of neon_blocks.h, neon_superblocks.h or neon_codebooks.h: the layout of the
// weights. It defines:
//
//   block        a block of the weights, and BLOCK, the number of elements in it
//   activations  a unit of a row of activations
//   unpack(b)    unpacks the unit at b to the members
//   add(sum, a)  adds the products of the unit and the activations a to the four lanes of `sum`

#pragma once

#include "matmul/rows_kernel.h"
#include "matmul/unroll.h"

#ifdef __aarch64__

#include "quants.h"
#include "simd-mappings.h"

#include <algorithm>
#include <arm_neon.h>
#include <cstring>

#define PYMTP_INLINE __attribute__((always_inline))

namespace pymtp::neon {

constexpr int UNIT    = 256;
constexpr int VECTORS = UNIT/16;  // number of registers with the bytes of a unit

static inline float half_to_float(ggml_half x) { return GGML_CPU_FP16_TO_FP32(x); }

// Adds the products of four bytes each to the four lanes of `sums`.
static inline int32x4_t dot(int32x4_t sums, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, a, b);
#else
    const int32x4_t low  = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
    return vaddq_s32(sums, vpaddq_s32(low, high));
#endif
}

// Calls f(j, x) for each vector j of a unit of activations, with its bytes x.
template <typename F> static inline void for_each_vector(const int8_t * q, F f) {
    int8x16x4_t x;
    unroll<VECTORS>([&](auto j) PYMTP_INLINE {
        if constexpr (j % 4 == 0) {
            x = vld1q_s8_x4(q);
            q += 64;
            asm volatile("" : "+r"(q));  // else all vectors are loaded at once, for which there are too few registers
        }
        f(j, x.val[j % 4]);
    });
}

// Returns 16 bytes: 0xff for each bit of word j (of 16 bits) that is one, else 0.
template <int j> static inline uint8x16_t spread_bits(uint8x16_t words) {
    const uint8x16_t word = vreinterpretq_u8_u16(vdupq_laneq_u16(vreinterpretq_u16_u8(words), j));
    const uint8x16_t each = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    return vtstq_u8(vqtbl1q_u8(word, each), vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201)));
}

// Returns the nibbles of 8 bytes, in order: the lower one of a byte first.
static inline uint8x16_t nibbles_of(uint8x8_t x) {
    const uint8x8_t low = vand_u8(x, vdup_n_u8(15)), high = vshr_n_u8(x, 4);
    return vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
}

// Implements rows_kernel::prepared_size.
template <typename L> static size_t prepared_size(int64_t k) {
    return (k + UNIT - 1)/UNIT*sizeof(typename L::activations);
}

// Implements rows_kernel::prepare.
template <typename L> static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    for (int64_t l = k0; l < k1; l += UNIT) {
        L::quantize(x + l, std::min<int64_t>(UNIT, k1 - l), ((typename L::activations *) prepared)[l/UNIT]);
    }
}

// Implements rows_kernel::multiply.
template <typename L>
static void multiply(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    typedef typename L::block block;

    const int64_t n_units = (k + UNIT - 1)/UNIT;
    for (int64_t i = 0; i < m; ++i) {
        float32x4_t sums[ROWS_PER_CALL];
        std::fill(sums, sums + n, vdupq_n_f32(0.0f));
        for (int64_t u = 0; u < n_units; ++u) {
            const block * b = (const block *) (w + i*stride) + u*UNIT/L::BLOCK;
            block last[UNIT/L::BLOCK];
            if (L::BLOCK < UNIT && k - u*UNIT < UNIT) {
                memset(last, 0, sizeof(last));
                memcpy(last, b, (k - u*UNIT)/L::BLOCK*sizeof(block));
                b = last;
            }
            L unit;
            unit.unpack(b);
            for (int64_t r = 0; r < n; ++r) {
                sums[r] = unit.add(sums[r], ((const typename L::activations *) x[r])[u]);
            }
        }
        for (int64_t r = 0; r < n; ++r) {
            y[r][i] = vaddvq_f32(sums[r]);
        }
    }
}

}  // namespace pymtp::neon

#endif
