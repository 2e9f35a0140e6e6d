// Rows of logits, and sums and maxima over them, written so that compilers make vectors of them.
#pragma once

#include "llama.h"

#include <cstddef>

// What to sample from: logits of the whole vocabulary, or of n tokens, in no order: the likeliest that a graph picked, or
// those that drafts are made over.
struct pymtp_logits {
    const float *       values;
    const llama_token * ids; // null: the whole vocabulary
    size_t              n;

    llama_token id(size_t i) const { return ids ? ids[i] : (llama_token) i; }
};

struct pymtp_candidate {
    llama_token id;
    float       logit;

    // the likelier first, of two that tie the lower id
    bool operator<(const pymtp_candidate & other) const {
        return logit != other.logit ? logit > other.logit : id < other.id;
    }
};

constexpr size_t PYMTP_LOGITS_BLOCK = 256; // logits looked at together

struct pymtp_logits_summary {
    float most;
    bool  nan; // one of them is not a number: most means nothing
};

pymtp_logits_summary pymtp_summarize(const float * logits, size_t n);

// The sum of exp(logit - most), to 1e-6 of itself.
double pymtp_sum_of_exp(const float * logits, size_t n, float most);
