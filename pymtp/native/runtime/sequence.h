// How far a sequence of a pair has come.
#pragma once

#include "pymtp.h"
#include "sampler.h"

#include <memory>
#include <vector>

struct pymtp_sequence {
    int32_t n_past   = 0; // tokens that the target holds
    int32_t n_rewind = 0; // how many of them can be taken back: drafts just verified
    int32_t n_head   = 0; // rows of the head's cache that stand on the target's hidden states: fewer than n_past while the
                          // head is behind, one more while draft steps go on from a row
    int32_t n_chain  = 0; // drafts made since the last verification

    bool odd_cells = false; // the head gave no numbers: its cells may hold such

    int32_t n_staged = 0; // tokens whose K and V were put into its first cells while it is empty, see pymtp_pair_load_cells

    std::unique_ptr<pymtp_sampler> sampler; // null until told how to sample
    std::vector<llama_token>       tokens;  // the n_past that the target holds, then what is drafted after them
    const float *                  first_logits = nullptr; // of the last prefill, or of copied_logits
    std::vector<float>             copied_logits;          // of a copy, until it goes on
    std::vector<pymtp_logprob>     logprobs; // of the last tokens that the target sampled, where asked for

    void forget_logits() {
        first_logits = nullptr;
        copied_logits.clear();
        copied_logits.shrink_to_fit();
    }
};
