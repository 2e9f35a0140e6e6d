// Samples tokens from rows of logits like pymtp/sampling.py, but without passing the logits to Python.
#pragma once

#include "vocab_sampling.h"
#include "grammar.h"
#include "logits.h"
#include "pymtp.h"
#include "sampler_chain.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Largest number of candidates that a graph picks for a sample: a top_k of up to 128, and 8 spare candidates.
constexpr size_t PYMTP_MAX_CANDIDATES = 136;

// Samples tokens with the parameters of one request. A sampled token depends only on seed, position, logits and, with
// penalties or a grammar, on the tokens before it; it does not depend on earlier samples. Not thread-safe.
class pymtp_sampler {
public:
    pymtp_sampler(const pymtp_sampling & params, int32_t n_vocab); // params: must have passed check()

    // Returns why sampling with these parameters would access invalid memory, or "" if it would not.
    static std::string check(const pymtp_sampling & params, int32_t n_vocab);

    struct result {
        llama_token token = LLAMA_TOKEN_NULL; // LLAMA_TOKEN_NULL if a logit is not a number
        // probability of the token among the most likely candidates, at temperature 1
        float       confidence = 0.0f;
        // false if the grammar allows no token at this position, and `token` is one that it does not allow; or if the
        // logits processor failed
        bool        allowed = true;
    };

    // Sets where the grammar's text starts: after the first n tokens of a prefix, or n_grammar_prefix tokens earlier.
    // Without this call, it starts at the first sample.
    void begin(size_t n);

    // Returns how many of the most likely tokens suffice to sample from: 1 for greedy sampling; 0 if all tokens are
    // needed.
    size_t n_candidates_needed(bool draft) const;

    // Samples the token at a position.
    // prefix: the n tokens before the sample, which only penalties, grammar and logits processor use.
    // confidence: whether to compute result.confidence, as for a draft, to which no logits processor applies
    result sample(const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence);

    // If the request asks for log-probabilities, appends those of a token and of the top tokens to `out`.
    void append_logprobs(const float * logits, llama_token token, std::vector<pymtp_logprob> & out);

private:
    bool has_penalties() const;
    pymtp_logits adjust(const pymtp_logits & from, const llama_token * prefix, size_t n);
    pymtp_logits full_row(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }
    bool select_allowed(const float * logits, size_t min_count, size_t k);
    pymtp_logits mask(const float * logits);
    result dead_end(const pymtp_logits & from);
    result sample_chain(
            const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence);
    result sample_unsorted(const pymtp_logits & from, int64_t position);
    size_t count_after_filters();

    pymtp_sampling                params;
    std::vector<pymtp_logit_bias> bias;
    int32_t                       n_vocab;
    bool                          has_begun = false;

    std::unique_ptr<pymtp_grammar_matcher> grammar; // null: the request has no grammar
    std::unique_ptr<pymtp_sampler_chain>   chain;   // null: the request does not need one

    std::vector<float>           processed;
    std::vector<float>           adjusted;
    std::vector<float>           masked;
    std::vector<llama_token>     tokens;
    std::vector<bool>            is_allowed;
    std::vector<pymtp_candidate> candidates; // the selected candidates, most likely first; equal ones by rising id
    std::vector<double>          weights;
    pymtp_nucleus                nucleus;
};
