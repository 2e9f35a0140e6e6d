// Kernels of rows.h for the layouts of llama.cpp's repack buffer on x86: 8 rows of the weights lie interleaved by 8 bytes.
//
// A vector holds some bytes of each of several rows of the weights, and sees as many bytes of a row of activations over and
// over.

#pragma once

#include "rows.h"
#include "rows_simd.h"

#include <algorithm>
#include <utility>

namespace pymtp {

extern const rows_kernel rows_q4_0x8;
extern const rows_kernel rows_iq4_nlx8;
extern const rows_kernel rows_mxfp4x8;
extern const rows_kernel rows_q4_Kx8;
extern const rows_kernel rows_q2_Kx8;

#if defined(PYMTP_ROWS_SIMD)

constexpr int64_t INTERLEAVED = 8;  // rows of the weights in a block

// llama.cpp's products of many rows take longer: with AVX-512 and 64 to 512 rows 2.3 times as long (Q4_0), 2.1 to 3.1
// times (Q4_K), more than 1.8 times (IQ4_NL); with AVX2 and 64 rows 1.8, 2.2, 1.3 times (one core of an AMD EPYC of Zen 5).
constexpr int64_t ANY_ROWS = INT64_MAX;

// The same weights times several groups of rows: this is pass i of n.
struct passes {
    int64_t i;
    int64_t n;
};

// F::run<R>(k, w, step, x, y, n_blocks, at) multiplies the INTERLEAVED rows of the weights at each of F::BLOCKS w, which are
// `step` bytes apart, by R rows of activations: F::MOST at most, and where there are more than these, F::BEST. Where n_blocks
// is less, the other w repeat the last one, and nothing of them is stored.
typedef void (*run_interleaved_t)(int64_t k, const char * const * w, size_t step, const char * const * x, float * const * y,
    int64_t n_blocks, passes at);

template <typename F, int... R>
static run_interleaved_t run_interleaved(std::integer_sequence<int, R...>, int64_t n) {
    static constexpr run_interleaved_t run[] = {F::template run<R + 1>...};
    return run[n - 1];
}

// Blocks from row i of the weights on by all rows.
template <typename F>
static void multiply_blocks(int64_t k, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y,
        int64_t i, int64_t n_blocks) {
    const char * blocks[F::BLOCKS];
    for (int64_t j = 0; j < F::BLOCKS; ++j) {
        blocks[j] = w + (i + std::min(j, n_blocks - 1)*INTERLEAVED)*stride;
    }
    const int64_t groups = n <= F::MOST ? 1 : (n + F::BEST - 1)/F::BEST;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t r0 = n*g/groups;
        const int64_t r1 = n*(g + 1)/groups;
        float * out[F::MOST];
        for (int64_t r = r0; r < r1; ++r) {
            out[r - r0] = y[r] + i;
        }
        run_interleaved<F>(std::make_integer_sequence<int, F::MOST>(), r1 - r0)(
            k, blocks, INTERLEAVED*stride, x + r0, out, n_blocks, {g, groups});
    }
}

// rows_kernel::multiply. Up to FEW rows are multiplied by One, which takes single blocks, and more rows by Several.
template <typename One, typename Several>
static void multiply_interleaved(
    int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    constexpr int64_t FEW = 2;

    for (int64_t i = 0; i < m; ) {
        const int64_t n_blocks = n <= FEW ? 1 : std::min(Several::BLOCKS, (m - i)/INTERLEAVED);
        if (n_blocks == 1) {
            multiply_blocks<One>(k, w, stride, n, x, y, i, 1);
        } else {
            multiply_blocks<Several>(k, w, stride, n, x, y, i, n_blocks);
        }
        i += n_blocks*INTERLEAVED;
    }
}

#endif

}  // namespace pymtp
