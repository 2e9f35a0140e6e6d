#include "logits.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

// Returns the sum of exp(logit - highest) with a relative error of at most 1e-6: 5e-7 for the difference of two
// floats, 2e-7 for the rest.
//
// With x = q ln 2 + r and |r| <= ln 2 / 2, reduced in two steps (W. J. Cody and W. Waite, "Software Manual for the
// Elementary Functions", 1980, chapter 6), exp(x) is 2^q times the Taylor series of exp(r), which after r^7 is 6e-9
// off. The loop has no call and no branch, so that compilers vectorize it; the library's exp takes one number at a
// time.
double pymtp_sum_of_exp(const float * logits, size_t n, float highest) {
    // Lower limit for logit - highest: below about this value, exp() of it is too small for a normal float.
    constexpr float min_difference = -87.0f;
    constexpr float shift          = 0x1.8p23f;       // adding this number rounds x to a whole number
    constexpr float ln2            = 0x1.62ep-1f;     // ln 2, rounded to so few bits that its product with q is exact
    constexpr float ln2_low        = 0x1.0bfbe8p-15f; // ln 2 minus the constant ln2
    double sums[8] = {};
    for (size_t start = 0; start < n; start += PYMTP_LOGITS_BLOCK) {
        float x[PYMTP_LOGITS_BLOCK], y[PYMTP_LOGITS_BLOCK];
        const size_t n_block = std::min(PYMTP_LOGITS_BLOCK, n - start);
        for (size_t i = 0; i < n_block; ++i) {
            const float difference = logits[start + i] - highest;
            x[i] = difference < min_difference ? min_difference : difference;
        }
        std::fill(x + n_block, x + PYMTP_LOGITS_BLOCK, min_difference);
        for (size_t i = 0; i < PYMTP_LOGITS_BLOCK; ++i) {
            const float shifted = x[i] * 0x1.715476p0f + shift;
            const float q = shifted - shift;
            const float r = (x[i] - q * ln2) - q * ln2_low;
            float sum = 1.0f/5040;
            sum = sum * r + 1.0f/720;
            sum = sum * r + 1.0f/120;
            sum = sum * r + 1.0f/24;
            sum = sum * r + 1.0f/6;
            sum = sum * r + 1.0f/2;
            sum = sum * r + 1.0f;
            sum = sum * r + 1.0f;
            uint32_t bits; // the low bits of `shifted` hold q, which becomes the exponent of 2^q
            std::memcpy(&bits, &shifted, sizeof(bits));
            bits = (bits + 127) << 23;
            float power;
            std::memcpy(&power, &bits, sizeof(power));
            y[i] = sum * power;
        }
        for (size_t i = 0; i < PYMTP_LOGITS_BLOCK; i += 8) {
            for (size_t j = 0; j < 8; ++j) {
                sums[j] += y[i + j];
            }
        }
    }
    return std::accumulate(sums, sums + 8, 0.0);
}

// Compares floats by their bits, converted to integers that sort in the same order: compilers vectorize a comparison of
// integers, but would compare the floats one by one.
pymtp_logits_summary pymtp_summarize(const float * logits, size_t n) {
    int32_t highest = INT32_MIN;
    int32_t nans = 0;
    for (size_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, logits + i, sizeof(bits));
        nans += (bits & INT32_MAX) > 0x7f800000;
        bits ^= (bits >> 31) & INT32_MAX; // reverses the order of negative numbers
        highest = bits > highest ? bits : highest;
    }
    highest ^= (highest >> 31) & INT32_MAX;
    float logit;
    std::memcpy(&logit, &highest, sizeof(logit));
    return {logit, nans != 0};
}
