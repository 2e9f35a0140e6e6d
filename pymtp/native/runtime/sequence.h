// The state of one sequence of a pair.
#pragma once

#include "pymtp.h"
#include "sampler.h"

#include <memory>
#include <vector>

struct pymtp_sequence {
    int32_t n_past    = 0; // tokens that the target holds
    int32_t n_rewind  = 0; // number of these tokens that can be rewound: the drafts just verified
    int32_t n_drafted = 0; // number of drafts made since the last verification

    // Number of rows in the head's cache that were computed from the target's hidden states. Fewer than n_past while
    // the head lags behind; one more than n_past between calls of pymtp_pair_draft_step.
    int32_t n_head = 0;

    bool head_has_nan = false; // whether the head's logits were not finite at some time, so that its cells may hold NaN

    // Number of tokens whose K and V are staged in the first cells of the empty sequence, see pymtp_pair_load_cells.
    int32_t n_staged = 0;

    std::unique_ptr<pymtp_sampler> sampler; // null until pymtp_pair_set_sampling
    // the n_past tokens, then the token that the drafts started from and the drafts
    std::vector<llama_token>       tokens;
    // the logits for first_token, in those of the last prefill or in copied_logits
    const float *                  first_logits = nullptr;
    // the logits for first_token of a copied or loaded sequence, until the sequence continues
    std::vector<float>             copied_logits;
    // log-probabilities for the last tokens sampled with the target, if asked for
    std::vector<pymtp_logprob>     logprobs;

    void forget_logits() {
        first_logits = nullptr;
        copied_logits.clear();
        copied_logits.shrink_to_fit();
    }
};
