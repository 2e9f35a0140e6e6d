// Activations in blocks of 32 elements, quantized to Q8_0, for kernels in which each lane of 32 bits belongs to one row
// of the weights.

#pragma once

#include "simd.h"

#ifdef PYMTP_AVX2

#include "quants.h"
#include "simd-mappings.h"

#include <algorithm>
#include <cstring>

namespace pymtp::blocks {

constexpr int LANE_BYTES = 4;

// A block of a prepared row of activations. Kernels store a weight as an unsigned number: its value plus a zero point.
// `correction` removes the zero point from the sums of products, which start from it: it is minus the zero point times
// the sum of the quants that a lane is multiplied by.
struct activations {
    int8_t qs[QK8_0];
    char   correction[LANE_BYTES];
    float  d;
};

static inline size_t prepared_size(int64_t k) { return k/QK8_0*sizeof(activations); }

static inline const activations & block_at(const char * prepared, int64_t i) {
    return ((const activations *) prepared)[i];
}

static inline void store_correction(int zero_point, const int8_t * qs, char * correction) {
    const __m128i ones = _mm_set1_epi8(1);
    const __m128i q0   = _mm_loadu_si128((const __m128i *) qs);
    const __m128i q1   = _mm_loadu_si128((const __m128i *) qs + 1);

    __m128i sums = _mm_add_epi16(_mm_maddubs_epi16(ones, q0), _mm_maddubs_epi16(ones, q1));
    sums = _mm_add_epi16(sums, _mm_unpackhi_epi64(sums, sums));
    sums = _mm_add_epi16(sums, _mm_srli_epi64(sums, 32));
#if defined(PYMTP_VNNI)
    sums = _mm_madd_epi16(sums, _mm_set1_epi16(-zero_point));
#else
    sums = _mm_mullo_epi16(sums, _mm_set1_epi16(-zero_point));
#endif
    const int32_t sum = _mm_cvtsi128_si32(sums);
    memcpy(correction, &sum, LANE_BYTES);
}

// Implements rows_kernel::prepare.
template <int ZERO_POINT> static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    constexpr int64_t N = 32;
    block_q8_0 blocks[N];

    for (int64_t i0 = k0; i0 < k1; i0 += N*QK8_0) {
        const int64_t n = std::min(N*QK8_0, k1 - i0);
        quantize_row_q8_0(x + i0, blocks, n);

        for (int64_t i = 0; i < n/QK8_0; ++i) {
            activations & a = ((activations *) prepared)[i0/QK8_0 + i];
            memcpy(a.qs, blocks[i].qs, sizeof(a.qs));
            store_correction(ZERO_POINT, a.qs, a.correction);
            a.d = GGML_CPU_FP16_TO_FP32(blocks[i].d);
        }
    }
}

}  // namespace pymtp::blocks

#endif
