// Activations for kernels whose lanes of 32 bits are rows of the weights: blocks of 32, quantized as llama.cpp does it.

#pragma once

#include "rows_simd.h"

#ifdef PYMTP_ROWS_SIMD

#include "quants.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstring>

namespace pymtp::blocks {

constexpr int PIECE = 4;  // bytes of a lane

// A block of a prepared row. excess: minus the weights' offset times the sums of the quants that a lane sees, for dot().
struct activations {
    int8_t qs[QK8_0];
    char   excess[PIECE];
    float  d;
};

static inline size_t prepared_size(int64_t k) { return k/QK8_0*sizeof(activations); }

static inline const activations & block_of(const char * prepared, int64_t i) { return ((const activations *) prepared)[i]; }

static inline void store_excess(int offset, const int8_t * qs, char * excess) {
    const __m128i ones = _mm_set1_epi8(1);
    const __m128i q0   = _mm_loadu_si128((const __m128i *) qs);
    const __m128i q1   = _mm_loadu_si128((const __m128i *) qs + 1);

    __m128i sums = _mm_add_epi16(_mm_maddubs_epi16(ones, q0), _mm_maddubs_epi16(ones, q1));
    sums = _mm_add_epi16(sums, _mm_unpackhi_epi64(sums, sums));
    sums = _mm_add_epi16(sums, _mm_srli_epi64(sums, 32));
#if defined(PYMTP_ROWS_VNNI)
    sums = _mm_madd_epi16(sums, _mm_set1_epi16(-offset));
#else
    sums = _mm_mullo_epi16(sums, _mm_set1_epi16(-offset));
#endif
    const int32_t sum = _mm_cvtsi128_si32(sums);
    memcpy(excess, &sum, PIECE);
}

// As rows_kernel::prepare, for weights that are OFFSET too large.
template <int OFFSET> static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    constexpr int64_t N = 32;
    block_q8_0 blocks[N];

    for (int64_t i0 = k0; i0 < k1; i0 += N*QK8_0) {
        const int64_t n = std::min(N*QK8_0, k1 - i0);
        quantize_row_q8_0(x + i0, blocks, n);

        for (int64_t i = 0; i < n/QK8_0; ++i) {
            activations & a = ((activations *) prepared)[i0/QK8_0 + i];
            memcpy(a.qs, blocks[i].qs, sizeof(a.qs));
            store_excess(OFFSET, a.qs, a.excess);
            a.d = GGML_CPU_FP16_TO_FP32(blocks[i].d);
        }
    }
}

}  // namespace pymtp::blocks

#endif
