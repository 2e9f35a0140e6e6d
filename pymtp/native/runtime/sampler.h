// Which token follows: what pymtp/sampling.py says, for rows of logits that never leave the native side.
#pragma once

#include "draw.h"
#include "grammar.h"
#include "logits.h"
#include "pymtp.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// that a graph picks for a sample: a top_k of up to 128, and a few more
constexpr size_t PYMTP_MOST_CANDIDATES = 136;

// Samples tokens by one request's parameters. Keeps nothing of what it sampled: the token is a function of seed, position,
// logits and, with penalties or a grammar, of the tokens before it. For one thread at a time.
class pymtp_sampler {
public:
    pymtp_sampler(const pymtp_sampling & params, int32_t n_vocab); // as refuse() lets pass

    // Why parameters from C would lead outside of what they point to; empty where they would not.
    static std::string refuse(const pymtp_sampling & params, int32_t n_vocab);

    struct result {
        llama_token token = LLAMA_TOKEN_NULL; // none: a logit is not a number
        float       confidence = 0.0f;        // its share of the most likely candidates' probability, at temperature 1
        bool        allowed    = true;        // false: the grammar allows no token after this prefix; it is any other
    };

    // The grammar's text begins with the token after the first n of a prefix, less those of the prompt that it holds. Where
    // this was not called, it begins with the first token sampled.
    void begin(size_t n);

    // How many of the likeliest tokens are enough to sample from: 1 where the likeliest is sampled, 0 where it takes all.
    size_t enough(bool draft) const;

    // prefix: the n tokens before the one to be sampled, the newest last; only penalties and grammar look at them.
    // confidence: whether it is asked for
    result sample(const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence);

    // Appends, where the request asks for them, the log-probability of a token and of the most likely ones.
    void report(const float * logits, llama_token token, std::vector<pymtp_logprob> & out);

private:
    bool penalizes() const;
    pymtp_logits adjust(const pymtp_logits & from, const llama_token * prefix, size_t n);
    bool select(const pymtp_logits & from, size_t k);
    pymtp_logits whole(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }
    bool select_allowed(const float * logits, size_t least, size_t k);
    pymtp_logits mask(const float * logits);
    result dead_end(const pymtp_logits & from);
    result sample_any(const pymtp_logits & from, int64_t position);
    size_t filter();

    pymtp_sampling                params;
    std::vector<pymtp_logit_bias> bias;
    int32_t                       n_vocab;
    bool                          begun = false;

    std::unique_ptr<pymtp_grammar_walk> grammar; // null: any text

    std::vector<float>           adjusted;
    std::vector<float>           masked;
    std::vector<llama_token>     tokens;
    std::vector<bool>            verdicts;
    std::vector<pymtp_candidate> candidates; // most likely first, ties by the lower id
    std::vector<double>          weights;
    pymtp_nucleus                nucleus;
};
