#include "sampler.h"

#include "api_guard.h"
#include "gumbel.h"
#include "vocab_sampling.h"
#include "logits.h"

#include <algorithm>
#include <cmath>

namespace {

// candidates needed to compute a confidence; greedy sampling itself needs only one
constexpr size_t min_candidates = 16;
// Number of candidates that are picked beyond top_k: if several logits tie for the last place, a device picks any of
// them.
constexpr size_t spare_candidates = 8;
// Numbers of candidates, beyond those needed, that are checked against the grammar before the whole vocabulary is.
constexpr size_t grammar_probes[] = {24, 256};

} // namespace

std::string pymtp_sampler::check(const pymtp_sampling & params, int32_t n_vocab) {
    if (params.n_bias < 0 || params.n_grammar_prefix < 0 || params.n_samplers < 0 || params.dry_allowed_length < 0) {
        return "n_bias, n_grammar_prefix, n_samplers and dry_allowed_length are counts";
    }
    for (int32_t i = 0; params.samplers && i < params.n_samplers; ++i) {
        if (params.samplers[i] < 0 || params.samplers[i] > PYMTP_SAMPLER_TEMPERATURE) {
            return "there is no sampler " + std::to_string(params.samplers[i]);
        }
    }
    if (params.dry_breakers && params.dry_breakers->tokens->n_vocab() != n_vocab) {
        return "the breakers of DRY are for another vocabulary";
    }
    for (int32_t i = 0; i < params.n_bias; ++i) {
        if (params.bias[i].token < 0 || params.bias[i].token >= n_vocab) {
            return "a bias on token " + std::to_string(params.bias[i].token) + ", in a vocabulary of " +
                    std::to_string(n_vocab);
        }
    }
    if (params.grammar && llama_vocab_n_tokens(llama_model_get_vocab(params.grammar->model.get())) != n_vocab) {
        return "the grammar is for another vocabulary";
    }
    return "";
}

pymtp_sampler::pymtp_sampler(const pymtp_sampling & params, int32_t n_vocab)
    : params(params), bias(params.bias, params.bias + params.n_bias), n_vocab(n_vocab) {
    this->params.bias    = nullptr;
    this->params.grammar = nullptr;
    if (params.grammar) {
        grammar = std::make_unique<pymtp_grammar_matcher>(*params.grammar);
    }
    if (pymtp_sampler_chain::is_needed(params)) {
        chain = std::make_unique<pymtp_sampler_chain>(params);
    }
    this->params.samplers     = nullptr;
    this->params.dry_breakers = nullptr;
}

void pymtp_sampler::begin(size_t n) {
    has_begun = true;
    if (grammar) {
        grammar->begin(n - std::min<size_t>(n, params.n_grammar_prefix));
    }
}

// Returns whether penalties apply before the other samplers. A chain applies them itself.
bool pymtp_sampler::has_penalties() const {
    return !chain && params.penalty_last_n != 0 &&
        (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f);
}

size_t pymtp_sampler::n_candidates_needed(bool draft) const {
    if (!bias.empty() || has_penalties() || grammar || (!draft && (params.n_logprobs >= 0 || params.processor))) {
        return 0;
    }
    if (chain) {
        const size_t n = chain->n_candidates_needed();
        return n <= PYMTP_MAX_CANDIDATES ? std::min<size_t>(n, n_vocab) : 0;
    }
    if (params.temperature == 0.0 || params.top_k == 1) {
        return 1;
    }
    const size_t n = std::max<size_t>(params.top_k, min_candidates) + spare_candidates;
    return params.top_k > 0 && n <= PYMTP_MAX_CANDIDATES ? std::min<size_t>(n, n_vocab) : 0;
}

// Returns the logits after bias and penalties, or `from` itself if there is nothing to do. With a grammar, the result
// covers the whole vocabulary: tokens that `from` lacks get -infinity.
pymtp_logits pymtp_sampler::adjust(const pymtp_logits & from, const llama_token * prefix, size_t n) {
    if (bias.empty() && !has_penalties() && !(grammar && from.ids)) {
        return from;
    }
    if (from.ids) {
        adjusted.assign(n_vocab, -INFINITY);
        for (size_t i = 0; i < from.n; ++i) {
            adjusted[from.ids[i]] = from.values[i];
        }
    } else {
        adjusted.assign(from.values, from.values + n_vocab);
    }
    for (const auto & [token, value] : bias) {
        adjusted[token] += value;
    }
    if (has_penalties()) {
        for (const auto & [token, count] : pymtp_count_last_tokens(params, prefix, n)) {
            adjusted[token] = pymtp_penalize(params, adjusted[token], count);
        }
    }
    return full_row(adjusted.data());
}

// Returns the logits with -infinity for all tokens that the grammar does not allow.
pymtp_logits pymtp_sampler::mask(const float * logits) {
    masked.resize(n_vocab);
    grammar->all_allowed().mask_logits(logits, masked.data());
    return full_row(masked.data());
}

// Selects the most likely tokens that the grammar allows into `candidates`, in order: at most k, and at least min_count
// if the grammar allows that many. To save time, only some of the most likely tokens are checked first; this does not
// change the result. Returns false when the grammar allows no token, or when a logit is not a number.
bool pymtp_sampler::select_allowed(const float * logits, size_t min_count, size_t k) {
    const auto drop = [&](auto refused) {
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), refused), candidates.end());
    };
    for (const size_t more : grammar_probes) {
        if (!pymtp_select(full_row(logits), std::min<size_t>(k + more, n_vocab), candidates)) {
            return false;
        }
        tokens.clear();
        for (const pymtp_candidate & candidate : candidates) {
            tokens.push_back(candidate.id);
        }
        grammar->allowed(tokens, k, is_allowed);
        size_t i = 0;
        drop([&](const pymtp_candidate & candidate) { return !is_allowed[i++] || candidate.logit == -INFINITY; });
        if (candidates.size() >= min_count) {
            return true;
        }
    }
    if (!pymtp_select(mask(logits), k, candidates)) {
        return false;
    }
    drop([](const pymtp_candidate & candidate) { return candidate.logit == -INFINITY; });
    return true;
}

// Returns the result for a position at which the grammar allows no token: the most likely token of all, marked as not
// allowed.
pymtp_sampler::result pymtp_sampler::dead_end(const pymtp_logits & from) {
    return pymtp_select(from, 1, candidates) ? result{candidates[0].id, 0.0f, false} : result{};
}

// Samples from all tokens, or from those that top-p and min-p keep, without sorting them.
pymtp_sampler::result pymtp_sampler::sample_unsorted(const pymtp_logits & from, int64_t position) {
    const auto [highest, nan] = pymtp_summarize(from.values, from.n);
    if (nan || !std::isfinite(highest)) {
        return {};
    }
    const bool has_filters = params.top_p < 1.0 || params.min_p > 0.0;
    const double total = has_filters ? nucleus.find(from, highest, params.top_p, params.min_p)
                                 : pymtp_sum_of_exp(from.values, from.n, highest);
    const pymtp_candidate choice =
        pymtp_gumbel_max(has_filters ? nucleus.logits() : from, params.temperature, position, params.seed);
    return {choice.id, (float) (std::exp((double) choice.logit - highest) / total)};
}

pymtp_sampler::result pymtp_sampler::sample_chain(
        const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence) {
    const llama_token token = chain->sample(from, position, prefix, n);
    if (token == LLAMA_TOKEN_NULL || !confidence) {
        return {token};
    }
    pymtp_select(from, std::min(min_candidates, from.n), candidates);
    const auto weight_of = [&](float logit) { return std::exp((double) logit - candidates[0].logit); };
    double total = 0.0;
    for (const pymtp_candidate & candidate : candidates) {
        total += weight_of(candidate.logit);
    }
    const size_t i     = from.ids ? std::find(from.ids, from.ids + from.n, token) - from.ids : token;
    const double share = weight_of(from.values[i]) / total;
    return {token, (float) std::min(share, 1.0)};
}

// Returns how many of the sorted candidates top-k, top-p and min-p keep.
size_t pymtp_sampler::count_after_filters() {
    size_t n = params.top_k > 0 ? std::min<size_t>(params.top_k, candidates.size()) : candidates.size();
    if (params.top_p < 1.0) {
        double total = 0.0;
        for (size_t i = 0; i < n; ++i) {
            total += weights[i];
        }
        double sum = 0.0;
        size_t kept = 0;
        while (kept < n) {
            sum += weights[kept++];
            if (sum >= params.top_p * total) {
                break;
            }
        }
        n = kept;
    }
    if (params.min_p > 0.0) {
        while (n > 1 && weights[n - 1] < params.min_p) {
            --n;
        }
    }
    return n;
}

pymtp_sampler::result pymtp_sampler::sample(
        const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence) {
    if (!has_begun) {
        begin(n);
    }
    pymtp_logits row = from;
    if (params.processor && !confidence) { // `from` is a whole row, see n_candidates_needed
        processed.assign(from.values, from.values + n_vocab);
        if (!params.processor(params.processor_data, processed.data(), n_vocab, prefix, n)) {
            return {0, 0.0f, false};
        }
        row = full_row(processed.data());
    }
    const pymtp_logits logits = adjust(row, prefix, n);
    if (grammar && !grammar->go_to(prefix, n)) {
        return dead_end(logits);
    }
    if (chain) {
        const result any = sample_chain(grammar ? mask(logits.values) : logits, position, prefix, n, confidence);
        return grammar && any.token == LLAMA_TOKEN_NULL ? dead_end(logits) : any;
    }
    const bool greedy = params.temperature == 0.0;
    if (!greedy && (params.top_k == 0 || (size_t) params.top_k >= logits.n)) {
        const result any = sample_unsorted(grammar ? mask(logits.values) : logits, position);
        return grammar && any.token == LLAMA_TOKEN_NULL ? dead_end(logits) : any;
    }
    const size_t n_for_confidence = confidence ? min_candidates : 1;
    const size_t k = std::min(greedy ? n_for_confidence : std::max<size_t>(params.top_k, n_for_confidence), logits.n);
    if (grammar && !select_allowed(logits.values, greedy ? 1 : params.top_k, k)) {
        return dead_end(logits);
    }
    if (!grammar && !pymtp_select(logits, k, candidates)) {
        return {};
    }
    if (candidates.empty()) { // cannot happen, but would return an invalid token
        return {};
    }
    weights.resize(candidates.size());
    double total = 0.0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        weights[i] = std::exp((double) candidates[i].logit - candidates[0].logit);
        total += weights[i];
    }
    size_t best = 0;
    if (!greedy) {
        const size_t kept = count_after_filters();
        double highest = -INFINITY;
        for (size_t i = 0; i < kept; ++i) {
            const double score =
                candidates[i].logit / params.temperature + pymtp_gumbel(candidates[i].id, position, params.seed);
            if (score > highest) {
                highest = score;
                best = i;
            }
        }
    }
    return {candidates[best].id, (float) (weights[best] / total)};
}

void pymtp_sampler::append_logprobs(const float * logits, llama_token token, std::vector<pymtp_logprob> & out) {
    if (params.n_logprobs < 0) {
        return;
    }
    pymtp_select(full_row(logits), std::min<size_t>(std::max(params.n_logprobs, 1), n_vocab), candidates);
    const float highest = candidates[0].logit;
    const double normalizer = highest + std::log(pymtp_sum_of_exp(logits, n_vocab, highest));
    out.push_back({token, logits[token] - normalizer});
    for (size_t i = 0; i < std::min<size_t>(params.n_logprobs, candidates.size()); ++i) {
        out.push_back({candidates[i].id, candidates[i].logit - normalizer});
    }
}

llama_token pymtp_sample(
        const pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence) {
    return pymtp_guarded<llama_token>(LLAMA_TOKEN_NULL, [&] {
        pymtp_require(n_vocab >= 1 && n >= 0, "a sample needs logits, and no less than zero tokens before it");
        const std::string error = pymtp_sampler::check(*sampling, n_vocab);
        pymtp_require(error.empty(), error.c_str());
        for (int32_t i = 0; i < n; ++i) {
            pymtp_require(prefix[i] >= 0 && prefix[i] < n_vocab, "a token before the sample is not in the vocabulary");
        }
        pymtp_sampler sampler(*sampling, n_vocab);
        sampler.begin(0);
        const auto sampled = sampler.sample({logits, nullptr, (size_t) n_vocab}, position, prefix, n, true);
        *confidence = sampled.confidence;
        return sampled.allowed ? sampled.token : (llama_token) LLAMA_TOKEN_NULL;
    });
}
