// Which token follows: what pymtp/sampling.py says, for rows of logits that never leave the native side.
#pragma once

#include "pymtp.h"

#include <cstdint>
#include <vector>

struct pymtp_candidate {
    llama_token id;
    float       logit;
};

// Draws tokens after one request's parameters. Keeps nothing of what it drew: the token is a function of seed, position,
// logits and, with penalties, of the tokens before it.
class pymtp_drawer {
public:
    pymtp_drawer(const pymtp_sampling & params, int32_t n_vocab);

    struct result {
        llama_token token = LLAMA_TOKEN_NULL; // none: a logit is not a number
        float       confidence = 0.0f;        // its share of the most likely candidates' probability, at temperature 1
    };

    // prefix: the n tokens before the one to be drawn, the newest last; only penalties look at them
    result draw(const float * logits, int64_t position, const llama_token * prefix, size_t n);

private:
    const float * adjust(const float * logits, const llama_token * prefix, size_t n);
    bool select(const float * logits, size_t k);
    size_t filter();

    pymtp_sampling                params;
    std::vector<pymtp_logit_bias> bias;
    int32_t                       n_vocab;

    std::vector<float>           adjusted;
    std::vector<pymtp_candidate> candidates; // most likely first, ties by the lower id
    std::vector<double>          weights;
};
