// Kernels of rows.h for the layouts of llama.cpp's repack buffer on x86: 8 rows of the weights lie interleaved by 8 bytes.
//
// A vector holds 8 bytes of each of 8 (or, with AVX2, 4) rows of the weights, and sees 8 bytes of a row of activations over
// and over. So a row of the weights has two lanes of 32 bits, which are added up last.

#pragma once

#include "rows.h"
#include "rows_simd.h"

#include <algorithm>

namespace pymtp {

extern const rows_kernel rows_q4_0x8;
extern const rows_kernel rows_iq4_nlx8;
extern const rows_kernel rows_mxfp4x8;
extern const rows_kernel rows_q4_Kx8;
extern const rows_kernel rows_q2_Kx8;

#if defined(PYMTP_ROWS_SIMD)

constexpr int64_t INTERLEAVED = 8;                         // rows of the weights in a block
constexpr int64_t COLUMNS     = simd::BYTES/8;             // those in a vector
constexpr int     PARTS       = INTERLEAVED/COLUMNS;       // vectors that hold all
constexpr int64_t TOGETHER    = 8;                         // rows of activations for which the weights are unpacked once

// llama.cpp's products of many rows take longer: with AVX-512 and 64 to 512 rows 1.5 to 1.8 times as long (Q4_0), 2.1 to
// 2.8 times (Q4_K), 1.8 times (IQ4_NL); with AVX2 and 64 rows 1.8, 2.2, 1.3 times (one core of an AMD EPYC of Zen 5).
constexpr int64_t ANY_ROWS = INT64_MAX;

// rows_kernel::multiply. run<R>(k, w, x, y) multiplies the INTERLEAVED rows at w by R rows.
template <typename F>
static void multiply_interleaved(
    int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y) {
    typedef void (*run_t)(int64_t k, const char * w, const char * const * x, float * const * y);
    static constexpr run_t run[] = {F::template run<1>, F::template run<2>, F::template run<3>, F::template run<4>,
        F::template run<5>, F::template run<6>, F::template run<7>, F::template run<8>};

    const int64_t groups = (n + TOGETHER - 1)/TOGETHER;
    for (int64_t i = 0; i < m; i += INTERLEAVED) {
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t r0 = n*g/groups;
            const int64_t r1 = n*(g + 1)/groups;
            float * out[TOGETHER];
            for (int64_t r = r0; r < r1; ++r) {
                out[r - r0] = y[r] + i;
            }
            run[r1 - r0 - 1](k, w + i*stride, x + r0, out);
        }
    }
}

#endif

}  // namespace pymtp
