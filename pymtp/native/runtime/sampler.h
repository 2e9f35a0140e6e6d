// Samples tokens like pymtp/sampling.py, for rows of logits that never leave the native side.
#pragma once

#include "vocab_sampling.h"
#include "grammar.h"
#include "logits.h"
#include "pymtp.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// the most candidates that a graph picks for a sample: a top_k of up to 128, and some spare ones
constexpr size_t PYMTP_MAX_CANDIDATES = 136;

// Samples tokens with the parameters of one request. It is stateless: the token is a function of seed, position,
// logits and, with penalties or a grammar, the tokens before it. Not thread-safe.
class pymtp_sampler {
public:
    pymtp_sampler(const pymtp_sampling & params, int32_t n_vocab); // params: accepted by check()

    // Returns why parameters from C would cause an invalid memory access, "" if they would not.
    static std::string check(const pymtp_sampling & params, int32_t n_vocab);

    struct result {
        llama_token token = LLAMA_TOKEN_NULL; // LLAMA_TOKEN_NULL when a logit is not a number
        float       confidence = 0.0f;        // its share of the most likely candidates' probability, at temperature 1
        // false when the grammar allows no token here; the token is arbitrary then
        bool        allowed = true;
    };

    // Lets the grammar's text start after the first n tokens of a prefix, less the prompt tokens that belong to it.
    // Without this call it starts with the first sampled token.
    void begin(size_t n);

    // Returns how many of the most likely tokens suffice to sample from: 1 for greedy sampling, 0 when all are needed.
    size_t n_candidates_needed(bool draft) const;

    // prefix: the n tokens before the sample; only penalties and grammar read them. confidence: whether to compute it
    result sample(const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence);

    // Appends the log-probabilities of a token and of the top ones, if the request asks for them.
    void append_logprobs(const float * logits, llama_token token, std::vector<pymtp_logprob> & out);

private:
    bool has_penalties() const;
    pymtp_logits adjust(const pymtp_logits & from, const llama_token * prefix, size_t n);
    bool select(const pymtp_logits & from, size_t k);
    pymtp_logits full_row(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }
    bool select_allowed(const float * logits, size_t min_count, size_t k);
    pymtp_logits mask(const float * logits);
    result dead_end(const pymtp_logits & from);
    result sample_unsorted(const pymtp_logits & from, int64_t position);
    size_t count_after_filters();

    pymtp_sampling                params;
    std::vector<pymtp_logit_bias> bias;
    int32_t                       n_vocab;
    bool                          has_begun = false;

    std::unique_ptr<pymtp_grammar_matcher> grammar; // null: any text

    std::vector<float>           adjusted;
    std::vector<float>           masked;
    std::vector<llama_token>     tokens;
    std::vector<bool>            is_allowed;
    std::vector<pymtp_candidate> candidates; // most likely first, ties by the lower id
    std::vector<double>          weights;
    pymtp_nucleus                nucleus;
};
