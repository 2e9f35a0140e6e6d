// Which token follows: what pymtp/sampling.py says, for rows of logits that never leave the native side.
#pragma once

#include "grammar.h"
#include "pymtp.h"

#include <cstdint>
#include <memory>
#include <vector>

struct pymtp_candidate {
    llama_token id;
    float       logit;
};

// Draws tokens after one request's parameters. Keeps nothing of what it drew: the token is a function of seed, position,
// logits and, with penalties or a grammar, of the tokens before it. For one thread at a time.
class pymtp_drawer {
public:
    pymtp_drawer(const pymtp_sampling & params, int32_t n_vocab);

    struct result {
        llama_token token = LLAMA_TOKEN_NULL; // none: a logit is not a number
        float       confidence = 0.0f;        // its share of the most likely candidates' probability, at temperature 1
        bool        allowed    = true;        // false: the grammar allows no token after this prefix; it is any other
    };

    // The grammar's text begins with the token after the first n of a prefix, less those of the prompt that it holds.
    void begin(size_t n);

    // prefix: the n tokens before the one to be drawn, the newest last; only penalties and grammar look at them.
    // confidence: whether it is asked for
    result draw(const float * logits, int64_t position, const llama_token * prefix, size_t n, bool confidence);

    // Appends, where the request asks for them, the log-probability of a token and of the most likely ones.
    void report(const float * logits, llama_token token, std::vector<pymtp_logprob> & out);

private:
    const float * adjust(const float * logits, const llama_token * prefix, size_t n);
    bool select(const float * logits, size_t k);
    bool select_allowed(const float * logits, size_t least, size_t k);
    size_t filter();

    pymtp_sampling                params;
    std::vector<pymtp_logit_bias> bias;
    int32_t                       n_vocab;

    std::unique_ptr<pymtp_grammar_walk> grammar; // null: any text

    std::vector<float>           adjusted;
    std::vector<float>           masked;
    std::vector<llama_token>     tokens;
    std::vector<bool>            verdicts;
    std::vector<pymtp_candidate> candidates; // most likely first, ties by the lower id
    std::vector<double>          weights;
};
