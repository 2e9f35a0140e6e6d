// The state of one sequence of a pair.
#pragma once

#include "pymtp.h"
#include "sampler.h"

#include <memory>
#include <vector>

struct pymtp_sequence {
    int32_t n_past    = 0; // tokens that the target holds
    int32_t n_rewind  = 0; // how many of them can be rewound: drafts just verified
    int32_t n_drafted = 0; // drafts made since the last verification

    // Rows of the head's cache that were computed from the target's hidden states: fewer than n_past while the head
    // lags behind, one more between the draft steps of pymtp_pair_draft_step.
    int32_t n_head = 0;

    bool head_has_nan = false; // the head's logits were not finite, so its cells may hold NaN

    // tokens whose K and V are staged in the first cells of an empty sequence, see pymtp_pair_load_cells
    int32_t n_staged = 0;

    std::unique_ptr<pymtp_sampler> sampler; // null until pymtp_pair_set_sampling
    std::vector<llama_token>       tokens;  // n_past tokens, then the drafts and the token that they started from
    const float *                  first_logits = nullptr; // points into the last prefill's logits, or to copied_logits
    std::vector<float>             copied_logits;          // of a copied or loaded sequence, until it continues
    std::vector<pymtp_logprob>     logprobs; // for the target's last samples, if asked for

    void forget_logits() {
        first_logits = nullptr;
        copied_logits.clear();
        copied_logits.shrink_to_fit();
    }
};
