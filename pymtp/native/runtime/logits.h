// Defines rows of logits, and functions over such rows that compilers can vectorize.
#pragma once

#include "llama.h"

#include <cstddef>

// The logits to sample from: of the whole vocabulary, or of n tokens in any order (candidates that a graph has picked,
// or the draft vocabulary).
struct pymtp_logits {
    const float *       values;
    const llama_token * ids; // the token of each value; null: the values are those of the whole vocabulary, in order
    size_t              n;

    llama_token id(size_t i) const { return ids ? ids[i] : (llama_token) i; }
};

struct pymtp_candidate {
    llama_token id;
    float       logit;

    // orders likelier tokens first, and tokens of equal logit by their id
    bool operator<(const pymtp_candidate & other) const {
        return logit != other.logit ? logit > other.logit : id < other.id;
    }
};

constexpr size_t PYMTP_LOGITS_BLOCK = 256; // number of logits that functions process together

struct pymtp_logits_summary {
    float highest;
    bool  nan; // whether any logit is NaN; `highest` is then meaningless
};

pymtp_logits_summary pymtp_summarize(const float * logits, size_t n);

// Returns the sum of exp(logit - highest), with a relative error of at most 1e-6.
double pymtp_sum_of_exp(const float * logits, size_t n, float highest);
