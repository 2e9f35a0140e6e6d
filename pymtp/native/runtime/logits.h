// Sums and maxima over rows of logits, written so that compilers make vectors of them.
#pragma once

#include <cstddef>

constexpr size_t PYMTP_LOGITS_BLOCK = 256; // logits looked at together

struct pymtp_logits_summary {
    float most;
    bool  nan; // one of them is not a number: most means nothing
};

pymtp_logits_summary pymtp_summarize(const float * logits, size_t n);

// The sum of exp(logit - most), to 1e-6 of itself.
double pymtp_sum_of_exp(const float * logits, size_t n, float most);
