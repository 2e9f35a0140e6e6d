// Kernels for the layouts of llama.cpp's repack buffer on x86, where 8 rows of the weights are interleaved in pieces of
// 8 bytes.
//
// A SIMD vector holds a few bytes of each of several rows of the weights. It is multiplied by a vector that repeats the
// bytes at the same position of a row of activations.

#pragma once

#include "matmul/rows_kernel.h"
#include "simd.h"

#include <algorithm>
#include <utility>

namespace pymtp {

extern const rows_kernel repacked_q4_0;
extern const rows_kernel repacked_iq4_nl;
extern const rows_kernel repacked_mxfp4;
extern const rows_kernel repacked_q4_K;
extern const rows_kernel repacked_q2_K;

#if defined(PYMTP_AVX2)

constexpr int64_t BLOCK_ROWS = 8;  // rows of the weights in a block

// The kernels are used for any number of rows, since llama.cpp's own kernels take longer, even for many rows: with
// AVX-512 and 64 to 512 rows, 2.3 times as long for Q4_0, 2.1 to 3.1 times for Q4_K, and more than 1.8 times for
// IQ4_NL; with AVX2 and 64 rows, 1.8, 2.2 and 1.3 times for these types (one core of an AMD EPYC, Zen 5).
constexpr int64_t ANY_ROWS = INT64_MAX;

// One of n passes over the same weights. Each pass is for another group of rows of activations; i is the number of the
// pass.
struct pass_of {
    int64_t i;
    int64_t n;
};

// The type of F::run<R>, where F is a kernel. It multiplies F::BLOCKS blocks by R rows of activations; a block has
// BLOCK_ROWS rows of the weights. R is at most F::MAX_ROWS; more rows are split into groups of at most F::BEST_ROWS. w:
// pointers to the blocks, which are `step` bytes apart. n_blocks: number of blocks whose results are stored. If it is
// less than F::BLOCKS, the other pointers repeat the last block.
typedef void (*run_fn)(int64_t k, const char * const * w, size_t step, const char * const * x, float * const * y,
    int64_t n_blocks, pass_of pass);

template <typename F, int... R>
static run_fn run_for_rows(std::integer_sequence<int, R...>, int64_t n) {
    static constexpr run_fn run[] = {F::template run<R + 1>...};
    return run[n - 1];
}

// Multiplies n_blocks blocks, which start at row i of the weights, by all n rows of activations.
template <typename F>
static void multiply_blocks(int64_t k, const char * w, size_t stride, int64_t n, const char * const * x,
        float * const * y, int64_t i, int64_t n_blocks) {
    const char * blocks[F::BLOCKS];
    for (int64_t j = 0; j < F::BLOCKS; ++j) {
        blocks[j] = w + (i + std::min(j, n_blocks - 1)*BLOCK_ROWS)*stride;
    }
    const int64_t groups = n <= F::MAX_ROWS ? 1 : (n + F::BEST_ROWS - 1)/F::BEST_ROWS;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t r0 = n*g/groups;
        const int64_t r1 = n*(g + 1)/groups;
        float * out[F::MAX_ROWS];
        for (int64_t r = r0; r < r1; ++r) {
            out[r - r0] = y[r] + i;
        }
        run_for_rows<F>(std::make_integer_sequence<int, F::MAX_ROWS>(), r1 - r0)(
            k, blocks, BLOCK_ROWS*stride, x + r0, out, n_blocks, {g, groups});
    }
}

// Implements rows_kernel::multiply. The kernel SingleBlock multiplies up to FEW_ROWS rows of activations, MultiBlock
// more rows.
template <typename SingleBlock, typename MultiBlock>
static void multiply_repacked(
    int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    constexpr int64_t FEW_ROWS = 2;

    for (int64_t i = 0; i < m; ) {
        const int64_t n_blocks = n <= FEW_ROWS ? 1 : std::min(MultiBlock::BLOCKS, (m - i)/BLOCK_ROWS);
        if (n_blocks == 1) {
            multiply_blocks<SingleBlock>(k, w, stride, n, x, y, i, 1);
        } else {
            multiply_blocks<MultiBlock>(k, w, stride, n, x, y, i, n_blocks);
        }
        i += n_blocks*BLOCK_ROWS;
    }
}

#endif

}  // namespace pymtp
