#include "logits.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

// The sum of exp(logit - most), to 1e-6 of itself: 5e-7 for the difference of two floats, 2e-7 for the rest.
//
// With x = q ln 2 + r and |r| <= ln 2 / 2, in two steps (W. J. Cody and W. Waite, "Software Manual for the Elementary
// Functions", 1980, chapter 6), exp(x) is 2^q times Taylor's series of exp(r), of which 6e-9 is left after r^7. No call and
// no branch, so that compilers make vectors of it: the library's exp takes one number at a time.
double pymtp_sum_of_exp(const float * logits, size_t n, float most) {
    constexpr float least   = -87.0f;          // about where floats lose digits: what is less counts as that
    constexpr float shift   = 0x1.8p23f;       // rounds to a whole number what it is added to
    constexpr float ln2     = 0x1.62ep-1f;     // of few bits, so that its product with q is exact
    constexpr float ln2_low = 0x1.0bfbe8p-15f; // the rest of it
    double sums[8] = {};
    for (size_t start = 0; start < n; start += PYMTP_LOGITS_BLOCK) {
        float x[PYMTP_LOGITS_BLOCK], y[PYMTP_LOGITS_BLOCK];
        const size_t here = std::min(PYMTP_LOGITS_BLOCK, n - start);
        for (size_t i = 0; i < here; ++i) {
            const float difference = logits[start + i] - most;
            x[i] = difference < least ? least : difference;
        }
        std::fill(x + here, x + PYMTP_LOGITS_BLOCK, least);
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
            uint32_t bits; // they end with q, which becomes the exponent
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

// As whole numbers in the same order, so that compilers make vectors of it: floats they must compare one after the other.
pymtp_logits_summary pymtp_summarize(const float * logits, size_t n) {
    int32_t most = INT32_MIN;
    int32_t nans = 0;
    for (size_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, logits + i, sizeof(bits));
        nans += (bits & INT32_MAX) > 0x7f800000;
        bits ^= (bits >> 31) & INT32_MAX; // the less a negative number is, the greater are its bits
        most = bits > most ? bits : most;
    }
    most ^= (most >> 31) & INT32_MAX;
    float logit;
    std::memcpy(&logit, &most, sizeof(logit));
    return {logit, nans != 0};
}
