// Applies samplers to a row of logits one after the other, in the order that a request asks for, with llama.cpp's
// definitions. Requests with the default order and no other samplers than penalties, top-k, top-p and min-p do not need
// a chain: pymtp_sampler has faster code for them, which gives the same tokens.
#pragma once

#include "dry.h"
#include "logits.h"
#include "pymtp.h"
#include "vocab_sampling.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

// Returns the logit of a token that occurred `count` times before, after the penalties for that.
float pymtp_penalize(const pymtp_sampling & params, float logit, int32_t count);

// Returns how often each of the last tokens occurs, for the penalties.
std::unordered_map<llama_token, int32_t> pymtp_count_last_tokens(
        const pymtp_sampling & params, const llama_token * prefix, size_t n);

class pymtp_sampler_chain {
public:
    static bool is_needed(const pymtp_sampling & params);

    explicit pymtp_sampler_chain(const pymtp_sampling & params);

    // Returns how many of the most likely tokens suffice to sample from; 0 if all tokens are needed.
    size_t n_candidates_needed() const;

    // Returns the token at a position, a function of the arguments alone; LLAMA_TOKEN_NULL if a logit is NaN or the
    // largest is not finite. prefix: the n tokens before the sample
    llama_token sample(const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n);

private:
    struct entry { // a token that typical-p may keep
        double          distance; // of its surprise from the entropy
        double          weight;   // exp(logit - highest logit)
        pymtp_candidate token;

        bool operator<(const entry & other) const {
            return distance != other.distance ? distance < other.distance : token < other.token;
        }
    };

    template <typename F> void keep(float lowest, F && keeps);
    template <typename F> void adjust(const std::unordered_map<llama_token, int32_t> & counts, F && adjusted);
    template <typename F> void collect(float best, double width, F && distance_of);
    float highest() const;
    void keep_only(const pymtp_candidate & candidate);
    void copy_values();

    void penalize(const llama_token * prefix, size_t n);
    void penalize_repetitions(const llama_token * prefix, size_t n);
    void top_n_sigma();
    void top_k();
    void typical_p();
    void top_p();
    void min_p();
    void exclude_top_choices(int64_t position);
    void scale(bool is_last);
    double dynamic_temperature() const;

    pymtp_sampling                                   params;
    std::vector<int32_t>                             order;    // enum pymtp_sampler_kind
    std::shared_ptr<const pymtp_breaker_tokens>      breakers; // null: none
    pymtp_repetitions                                repetitions;

    // The remaining tokens with their logits: those that sample() got, or values and ids of this object.
    pymtp_logits             current = {};
    std::vector<float>       values, next_values;
    std::vector<llama_token> ids, next_ids;
    double                   temperature = 1.0; // to sample from `current` with

    std::vector<pymtp_candidate> candidates;
    std::vector<entry>           entries;
    pymtp_nucleus                nucleus;
};
