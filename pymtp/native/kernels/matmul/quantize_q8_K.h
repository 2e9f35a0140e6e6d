// Quantizes activations to Q8_K with SIMD, with the same result as llama.cpp.

#pragma once

#include "kernels.h"
#include "simd.h"

#ifdef PYMTP_AVX2
#include "quants.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

// Multiplies 8 elements by `scale`, and rounds them to integers.
static inline __m256i nearest(const float * x, __m256 scale) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
}

// Quantizes one superblock x to q, with the same result as quantize_row_q8_K_ref(). Returns the scale d.
static inline float quantize_q8_K(const float * x, int8_t * q) {
    __m256 high = _mm256_setzero_ps();
    __m256 low  = _mm256_setzero_ps();
    for (int j = 0; j < QK_K; j += 8) {
        high = _mm256_max_ps(_mm256_loadu_ps(x + j), high);
        low  = _mm256_min_ps(_mm256_loadu_ps(x + j), low);
    }
    float highs[8];
    float lows [8];
    _mm256_storeu_ps(highs, high);
    _mm256_storeu_ps(lows,  low);
    const float most  = *std::max_element(highs, highs + 8);
    const float least = *std::min_element(lows,  lows  + 8);

    float max = most > -least ? most : least;
    if (most == -least) {
        // Of several elements with the largest magnitude, llama.cpp takes the first.
        max = *std::find_if(x, x + QK_K - 1, [=](float y) { return std::fabs(y) == most; });
    }
    if (max == 0.0f) {
        memset(q, 0, QK_K);
        return 0.0f;
    }
    const float  iscale = -127.0f/max;
    const __m256 scale  = _mm256_set1_ps(iscale);
    for (int j = 0; j < QK_K; j += 32) {
        const __m256i a = _mm256_packs_epi32(nearest(x + j,      scale), nearest(x + j +  8, scale));
        const __m256i b = _mm256_packs_epi32(nearest(x + j + 16, scale), nearest(x + j + 24, scale));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(
            (__m256i *) (q + j), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
    }
    return 1.0f/iscale;
}

}  // namespace pymtp

#endif
