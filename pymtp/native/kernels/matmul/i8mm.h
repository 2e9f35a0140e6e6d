// Kernels for weights in the layout of the GGUF file, with ARM's matrix products of bytes (i8mm). They multiply two
// rows of the weights by two or four rows of activations. A single row that is left over is multiplied with dot
// products. It has the same bits, because the sums of a block are integers, and they are converted to floats in the
// same way.

#pragma once

#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include "quants.h"

#include <arm_neon.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pymtp::i8mm {

static inline int8x16_t zip_low(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

static inline int8x16_t zip_high(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

// Takes the scales of eight runs in two rows of the weights (s0 and s1). Sets scales[i] to the scales of run i, in the
// order of the lanes of a matrix product: s0, s1, s0, s1.
static inline void zip_scales(int16x8_t s0, int16x8_t s1, int32x4_t * scales) {
    const int16x8_t both[2] = {vzip1q_s16(s0, s1), vzip2q_s16(s0, s1)};
    for (int i = 0; i < 2; ++i) {
        const int64x2_t a = vreinterpretq_s64_s32(vmovl_s16(vget_low_s16(both[i])));
        const int64x2_t b = vreinterpretq_s64_s32(vmovl_high_s16(both[i]));
        scales[4*i]     = vreinterpretq_s32_s64(vdupq_laneq_s64(a, 0));
        scales[4*i + 1] = vreinterpretq_s32_s64(vdupq_laneq_s64(a, 1));
        scales[4*i + 2] = vreinterpretq_s32_s64(vdupq_laneq_s64(b, 0));
        scales[4*i + 3] = vreinterpretq_s32_s64(vdupq_laneq_s64(b, 1));
    }
}

// Multiplies rows i[0] and i[1] of the weights by 2*PAIRS rows of activations.
template <typename T, int PAIRS>
static inline void multiply_pairs(
    const typename T::block * const * w, int64_t n_blocks, const char * const * x, float * const * y,
    const int64_t * i) {
    const block_q8_K * rows[2*PAIRS];
    for (int row = 0; row < 2*PAIRS; ++row) {
        rows[row] = (const block_q8_K *) x[row];
    }
    float32x4_t sums[PAIRS];
    T::template dot_pairs<PAIRS>(w[0], w[1], rows, n_blocks, sums);
    for (int row = 0; row < 2*PAIRS; ++row) {
        y[row][i[0]] = sums[row/2][row%2*2];
        y[row][i[1]] = sums[row/2][row%2*2 + 1];
    }
}

// Implements rows_kernel::multiply(). Prepared rows consist of block_q8_K. The type T must have these members:
//   block                                        type of a block of the weights
//   dot_row(w, x, n_blocks)                      multiplies a row of the weights by a row of activations
//   dot_pairs<PAIRS>(w0, w1, x, n_blocks, sums)  multiplies two rows of the weights by 2*PAIRS rows of activations
template <typename T>
static void multiply(
    int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    typedef typename T::block block;
    const int64_t n_blocks = k/QK_K;
    for (int64_t first = 0; first < m; first += 2) {
        const int64_t i[2]       = {first, std::min(first + 1, m - 1)};
        const block * weights[2] = {(const block *) (w + i[0]*stride), (const block *) (w + i[1]*stride)};

        int64_t r = 0;
        for (; r + 4 <= n; r += 4) {
            multiply_pairs<T, 2>(weights, n_blocks, x + r, y + r, i);
        }
        if (r + 2 <= n) {
            multiply_pairs<T, 1>(weights, n_blocks, x + r, y + r, i);
            r += 2;
        }
        for (int j = 0; r < n && j < 2; ++j) {
            y[r][i[j]] = T::dot_row(weights[j], (const block_q8_K *) x[r], n_blocks);
        }
    }
}

}  // namespace pymtp::i8mm

#endif
