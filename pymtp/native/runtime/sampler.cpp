#include "sampler.h"

#include "draw.h"
#include "gumbel.h"
#include "logits.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace {

constexpr size_t min_candidates = 16;  // to tell how sure it is; greedy itself needs one
constexpr size_t spare          = 8;   // candidates beyond the k-th: a device takes any of those that tie at its last place
constexpr size_t tried[]        = {24, 256}; // candidates more that a grammar looks at before it looks at the whole vocabulary

} // namespace

std::string pymtp_sampler::refuse(const pymtp_sampling & params, int32_t n_vocab) {
    if (params.n_bias < 0 || params.n_grammar_prefix < 0) {
        return "n_bias and n_grammar_prefix are counts";
    }
    for (int32_t i = 0; i < params.n_bias; ++i) {
        if (params.bias[i].token < 0 || params.bias[i].token >= n_vocab) {
            return "a bias on token " + std::to_string(params.bias[i].token) + ", in a vocabulary of " + std::to_string(n_vocab);
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
        grammar = std::make_unique<pymtp_grammar_walk>(*params.grammar);
    }
}

void pymtp_sampler::begin(size_t n) {
    begun = true;
    if (grammar) {
        grammar->begin(n - std::min<size_t>(n, params.n_grammar_prefix));
    }
}

bool pymtp_sampler::penalizes() const {
    return params.penalty_last_n != 0 &&
        (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f);
}

size_t pymtp_sampler::enough(bool draft) const {
    if (!bias.empty() || penalizes() || grammar || (!draft && params.n_logprobs >= 0)) {
        return 0;
    }
    if (params.temperature == 0.0 || params.top_k == 1) {
        return 1;
    }
    const size_t n = std::max<size_t>(params.top_k, min_candidates) + spare;
    return params.top_k > 0 && n <= PYMTP_MOST_CANDIDATES ? std::min<size_t>(n, n_vocab) : 0;
}

// The logits after bias and penalties: what they came from where there are none. A grammar, too, is asked about the whole
// vocabulary: tokens that are not in what they came from are impossible.
pymtp_logits pymtp_sampler::adjust(const pymtp_logits & from, const llama_token * prefix, size_t n) {
    if (bias.empty() && !penalizes() && !(grammar && from.ids)) {
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
    if (penalizes()) {
        const size_t last = params.penalty_last_n < 0 ? n : std::min<size_t>(n, params.penalty_last_n);
        std::unordered_map<llama_token, int> counts;
        for (size_t i = n - last; i < n; ++i) {
            counts[prefix[i]]++;
        }
        for (const auto & [token, count] : counts) {
            float & logit = adjusted[token];
            // as llama.cpp: dividing a negative logit would reward the token
            logit = logit <= 0.0f ? logit * params.repeat_penalty : logit / params.repeat_penalty;
            logit -= count * params.frequency_penalty + params.presence_penalty;
        }
    }
    return whole(adjusted.data());
}

// The k most likely, in order, k at most n. False when a logit is not a number.
bool pymtp_sampler::select(const pymtp_logits & from, size_t k) {
    candidates.clear();
    bool numbers = true;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        const auto [most, nan] = pymtp_summarize(from.values + start, end - start);
        numbers &= !nan;
        // A token that only ties with the least of k replaces it where its id is lower: never where ids rise.
        if (candidates.size() == k && !(most > candidates.front().logit) && !(from.ids && most == candidates.front().logit)) {
            continue;
        }
        for (size_t i = start; i < end; ++i) {
            const pymtp_candidate candidate = {from.id(i), from.values[i]};
            if (candidates.size() < k) {
                candidates.push_back(candidate);
                std::push_heap(candidates.begin(), candidates.end());
            } else if (candidate < candidates.front()) {
                std::pop_heap(candidates.begin(), candidates.end());
                candidates.back() = candidate;
                std::push_heap(candidates.begin(), candidates.end());
            }
        }
    }
    std::sort_heap(candidates.begin(), candidates.end());
    return numbers && std::isfinite(candidates.front().logit);
}

// The logits of those tokens that the grammar allows; -infinity for all others.
pymtp_logits pymtp_sampler::mask(const float * logits) {
    masked.resize(n_vocab);
    grammar->all_allowed().keep(logits, masked.data());
    return whole(masked.data());
}

// The k most likely of those that the grammar allows, in order, at least some of them: those among the most likely that
// are looked at first are the same. False when there is none, and when a logit is not a number.
bool pymtp_sampler::select_allowed(const float * logits, size_t least, size_t k) {
    const auto drop = [&](auto refused) {
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), refused), candidates.end());
    };
    for (const size_t more : tried) {
        if (!select(whole(logits), std::min<size_t>(k + more, n_vocab))) {
            return false;
        }
        tokens.clear();
        for (const pymtp_candidate & candidate : candidates) {
            tokens.push_back(candidate.id);
        }
        grammar->allowed(tokens, k, verdicts);
        size_t i = 0;
        drop([&](const pymtp_candidate & candidate) { return !verdicts[i++] || candidate.logit == -INFINITY; });
        if (candidates.size() >= least) {
            return true;
        }
    }
    if (!select(mask(logits), k)) {
        return false;
    }
    drop([](const pymtp_candidate & candidate) { return candidate.logit == -INFINITY; });
    return true;
}

// The grammar allows no token: the likeliest of all, which is told apart.
pymtp_sampler::result pymtp_sampler::dead_end(const pymtp_logits & from) {
    return select(from, 1) ? result{candidates[0].id, 0.0f, false} : result{};
}

// One of all tokens, but for those that top-p and min-p leave out.
pymtp_sampler::result pymtp_sampler::sample_any(const pymtp_logits & from, int64_t position) {
    const auto [most, nan] = pymtp_summarize(from.values, from.n);
    if (nan || !std::isfinite(most)) {
        return {};
    }
    const bool filters = params.top_p < 1.0 || params.min_p > 0.0;
    const double total = filters ? nucleus.find(from, most, params.top_p, params.min_p)
                                 : pymtp_sum_of_exp(from.values, from.n, most);
    const pymtp_candidate drawn =
        pymtp_draw(filters ? nucleus.logits() : from, params.temperature, position, params.seed);
    return {drawn.id, (float) (std::exp((double) drawn.logit - most) / total)};
}

// How many candidates top-k, top-p and min-p leave.
size_t pymtp_sampler::filter() {
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
    if (!begun) {
        begin(n);
    }
    const pymtp_logits logits = adjust(from, prefix, n);
    if (grammar && !grammar->go_to(prefix, n)) {
        return dead_end(logits);
    }
    const bool greedy = params.temperature == 0.0;
    if (!greedy && (params.top_k == 0 || (size_t) params.top_k >= logits.n)) {
        const result any = sample_any(grammar ? mask(logits.values) : logits, position);
        return grammar && any.token == LLAMA_TOKEN_NULL ? dead_end(logits) : any;
    }
    const size_t sure = confidence ? min_candidates : 1;
    const size_t k = std::min(greedy ? sure : std::max<size_t>(params.top_k, sure), logits.n);
    if (grammar && !select_allowed(logits.values, greedy ? 1 : params.top_k, k)) {
        return dead_end(logits);
    }
    if (!grammar && !select(logits, k)) {
        return {};
    }
    if (candidates.empty()) { // a mistake above must not become a token that is none
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
        const size_t kept = filter();
        double most = -INFINITY;
        for (size_t i = 0; i < kept; ++i) {
            const double score = candidates[i].logit / params.temperature + pymtp_gumbel(candidates[i].id, position, params.seed);
            if (score > most) {
                most = score;
                best = i;
            }
        }
    }
    return {candidates[best].id, (float) (weights[best] / total)};
}

void pymtp_sampler::report(const float * logits, llama_token token, std::vector<pymtp_logprob> & out) {
    if (params.n_logprobs < 0) {
        return;
    }
    select(whole(logits), std::min<size_t>(std::max(params.n_logprobs, 1), n_vocab));
    const float most = candidates[0].logit;
    const double normalizer = most + std::log(pymtp_sum_of_exp(logits, n_vocab, most));
    out.push_back({token, logits[token] - normalizer});
    for (size_t i = 0; i < std::min<size_t>(params.n_logprobs, candidates.size()); ++i) {
        out.push_back({candidates[i].id, candidates[i].logit - normalizer});
    }
}
