#include "sampler_chain.h"

#include "gumbel.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace {

// llama.cpp's default order
constexpr int32_t default_order[] = {
    PYMTP_SAMPLER_PENALTIES, PYMTP_SAMPLER_DRY,   PYMTP_SAMPLER_TOP_N_SIGMA, PYMTP_SAMPLER_TOP_K,
    PYMTP_SAMPLER_TYPICAL_P, PYMTP_SAMPLER_TOP_P, PYMTP_SAMPLER_MIN_P,       PYMTP_SAMPLER_XTC,
    PYMTP_SAMPLER_TEMPERATURE,
};
// Largest magnitude of a penalty or of a scaled logit, so that logits stay finite: a grammar may allow only tokens with
// such logits.
constexpr double max_magnitude = 1e30;
// Number of candidates that are picked beyond top_k, as in sampler.cpp: a device picks any of those that tie.
constexpr size_t spare_candidates = 8;
// Tokens whose logits are further below the highest one have less than 5e-18 of its probability.
constexpr double negligible = 40.0;

bool has_dry(const pymtp_sampling & params) {
    return params.dry_multiplier > 0.0 && params.dry_base >= 1.0 && params.dry_penalty_last_n != 0;
}

bool has_typical_p(const pymtp_sampling & params) {
    return params.typical_p > 0.0 && params.typical_p < 1.0;
}

bool has_xtc(const pymtp_sampling & params) {
    return params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5;
}

bool has_penalties(const pymtp_sampling & params) {
    return params.penalty_last_n != 0 &&
        (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f);
}

// Returns whether a sampler of the order does anything.
bool is_on(const pymtp_sampling & params, int32_t kind) {
    switch (kind) {
        case PYMTP_SAMPLER_PENALTIES:   return has_penalties(params);
        case PYMTP_SAMPLER_DRY:         return has_dry(params);
        case PYMTP_SAMPLER_TOP_N_SIGMA: return params.top_n_sigma > 0.0;
        case PYMTP_SAMPLER_TOP_K:       return params.top_k > 0;
        case PYMTP_SAMPLER_TYPICAL_P:   return has_typical_p(params);
        case PYMTP_SAMPLER_TOP_P:       return params.top_p < 1.0;
        case PYMTP_SAMPLER_MIN_P:       return params.min_p > 0.0;
        case PYMTP_SAMPLER_XTC:         return has_xtc(params);
        default:                        return true;
    }
}

// Returns the last tokens that a penalty looks at. last_n: number of tokens; -1: all
size_t count_last(int32_t last_n, size_t n) {
    return last_n < 0 ? n : std::min<size_t>(n, last_n);
}

struct distribution {
    double total   = 0.0; // sum of exp(logit - highest logit)
    double entropy = 0.0; // in nats
    size_t n       = 0;   // number of tokens with logits above -infinity
};

// Describes the softmax of the logits. best: the highest logit
distribution describe(const pymtp_logits & from, float best) {
    distribution of;
    for (size_t i = 0; i < from.n; ++i) {
        const double below = (double) best - from.values[i];
        of.n += from.values[i] != -INFINITY;
        if (below <= negligible) {
            const double weight = std::exp(-below);
            of.total   += weight;
            of.entropy += weight * below;
        }
    }
    of.entropy = std::log(of.total) + of.entropy / of.total;
    return of;
}

} // namespace

float pymtp_penalize(const pymtp_sampling & params, float logit, int32_t count) {
    // As in llama.cpp, negative logits are multiplied: dividing them would make the token more likely.
    logit = logit <= 0.0f ? logit * params.repeat_penalty : logit / params.repeat_penalty;
    return logit - (count * params.frequency_penalty + params.presence_penalty);
}

std::unordered_map<llama_token, int32_t> pymtp_count_last_tokens(
        const pymtp_sampling & params, const llama_token * prefix, size_t n) {
    std::unordered_map<llama_token, int32_t> counts;
    for (size_t i = n - count_last(params.penalty_last_n, n); i < n; ++i) {
        if (prefix[i] >= 0) { // an image is no token that could be sampled
            counts[prefix[i]]++;
        }
    }
    return counts;
}

bool pymtp_sampler_chain::is_needed(const pymtp_sampling & params) {
    return params.samplers || has_dry(params) || params.top_n_sigma > 0.0 || has_typical_p(params) || has_xtc(params) ||
        params.dynatemp_range > 0.0;
}

pymtp_sampler_chain::pymtp_sampler_chain(const pymtp_sampling & params) : params(params) {
    const int32_t * begin = params.samplers ? params.samplers : std::begin(default_order);
    const int32_t * end   = params.samplers ? begin + params.n_samplers : std::end(default_order);
    std::copy_if(begin, end, std::back_inserter(order), [&](int32_t kind) { return is_on(params, kind); });
    if (params.dry_breakers) {
        breakers = params.dry_breakers->tokens;
    }
    this->params.samplers     = nullptr;
    this->params.dry_breakers = nullptr;
}

size_t pymtp_sampler_chain::n_candidates_needed() const {
    return !order.empty() && order.front() == PYMTP_SAMPLER_TOP_K ? params.top_k + spare_candidates : 0;
}

float pymtp_sampler_chain::highest() const {
    return pymtp_summarize(current.values, current.n).highest;
}

// Keeps the tokens for which keeps(candidate) is true, in their order. Tokens with logits of -infinity go, and tokens
// with logits below `lowest` may go without being asked for.
template <typename F> void pymtp_sampler_chain::keep(float lowest, F && keeps) {
    next_values.clear();
    next_ids.clear();
    for (size_t start = 0; start < current.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, current.n);
        if (pymtp_summarize(current.values + start, end - start).highest < lowest) {
            continue;
        }
        for (size_t i = start; i < end; ++i) {
            const pymtp_candidate candidate = {current.id(i), current.values[i]};
            if (candidate.logit != -INFINITY && keeps(candidate)) {
                next_values.push_back(candidate.logit);
                next_ids.push_back(candidate.id);
            }
        }
    }
    values.swap(next_values);
    ids.swap(next_ids);
    current = {values.data(), ids.data(), values.size()};
}

void pymtp_sampler_chain::keep_only(const pymtp_candidate & candidate) {
    values  = {candidate.logit};
    ids     = {candidate.id};
    current = {values.data(), ids.data(), 1};
}

// Copies the logits that sample() got, so that they can be changed.
void pymtp_sampler_chain::copy_values() {
    if (current.values != values.data()) {
        values.assign(current.values, current.values + current.n);
        if (current.ids) {
            ids.assign(current.ids, current.ids + current.n);
        }
        current = {values.data(), current.ids ? ids.data() : nullptr, values.size()};
    }
}

// Replaces the logit of each token in `counts` by adjusted(token, logit, count).
template <typename F>
void pymtp_sampler_chain::adjust(const std::unordered_map<llama_token, int32_t> & counts, F && adjusted) {
    if (counts.empty()) {
        return;
    }
    copy_values();
    if (!current.ids) {
        for (const auto & [token, count] : counts) {
            values[token] = adjusted(token, values[token], count);
        }
        return;
    }
    for (size_t i = 0; i < values.size(); ++i) {
        const auto found = counts.find(ids[i]);
        if (found != counts.end()) {
            values[i] = adjusted(ids[i], values[i], found->second);
        }
    }
}

void pymtp_sampler_chain::penalize(const llama_token * prefix, size_t n) {
    adjust(pymtp_count_last_tokens(params, prefix, n), [&](llama_token, float logit, int32_t count) {
        return pymtp_penalize(params, logit, count);
    });
}

void pymtp_sampler_chain::penalize_repetitions(const llama_token * prefix, size_t n) {
    const size_t last = count_last(params.dry_penalty_last_n, n);
    const auto & lengths =
        repetitions.find(prefix + (n - last), last, params.dry_allowed_length, breakers.get());
    adjust(lengths, [&](llama_token token, float logit, int32_t length) {
        if (breakers && breakers->has_whole(token)) {
            return logit;
        }
        const double power = std::pow(params.dry_base, length - params.dry_allowed_length);
        return (float) (logit - std::min(params.dry_multiplier * power, max_magnitude));
    });
}

void pymtp_sampler_chain::top_n_sigma() {
    constexpr size_t n_sums = 8; // several sums, so that compilers vectorize
    const size_t n = std::count_if(current.values, current.values + current.n, [](float v) { return v != -INFINITY; });
    const auto mean_of = [&](auto && term) {
        double sums[n_sums] = {};
        for (size_t start = 0; start < current.n; start += n_sums) {
            const size_t n_here = std::min(n_sums, current.n - start);
            for (size_t i = 0; i < n_here; ++i) {
                const double logit = current.values[start + i];
                sums[i] += logit != -INFINITY ? term(logit) : 0.0;
            }
        }
        return std::accumulate(sums, sums + n_sums, 0.0) / n;
    };
    const double mean     = mean_of([](double logit) { return logit; });
    const double variance = mean_of([&](double logit) { return (logit - mean) * (logit - mean); });
    const float  best     = highest();
    const float  lowest   = (float) (best - params.top_n_sigma * std::sqrt(variance));
    keep(lowest, [&](const pymtp_candidate & candidate) { return candidate.logit >= lowest; });
}

void pymtp_sampler_chain::top_k() {
    if ((size_t) params.top_k >= current.n) {
        return;
    }
    pymtp_select(current, params.top_k, candidates);
    values.clear();
    ids.clear();
    for (const pymtp_candidate & candidate : candidates) {
        if (candidate.logit != -INFINITY) {
            values.push_back(candidate.logit);
            ids.push_back(candidate.id);
        }
    }
    current = {values.data(), ids.data(), values.size()};
}

// Keeps the tokens whose surprise, -log p, is closest to the expected one, the entropy: as many as exceed typical_p
// together (C. Meister et al., "Locally Typical Sampling", arXiv 2202.00666).
void pymtp_sampler_chain::typical_p() {
    const float        best = highest();
    const distribution of   = describe(current, best);
    const auto distance_of  = [&](double below) { return std::abs(std::log(of.total) + below - of.entropy); };
    // Tokens with negligible probabilities are far from the entropy, so that the others nearly always suffice.
    for (const double width : {negligible, (double) INFINITY}) {
        collect(best, width, distance_of);
        // the sum must exceed typical_p, not only reach it
        entries.resize(pymtp_partition_share(entries, std::nextafter(params.typical_p * of.total, INFINITY)));
        const auto [sum, farthest] = std::accumulate(entries.begin(), entries.end(), std::pair(0.0, 0.0),
            [](auto so_far, const entry & e) {
                return std::pair(so_far.first + e.weight, std::max(so_far.second, e.distance));
            });
        if (sum > params.typical_p * of.total && farthest < distance_of(width)) {
            break;
        }
    }
    values.clear();
    ids.clear();
    for (const entry & e : entries) {
        values.push_back(e.token.logit);
        ids.push_back(e.token.id);
    }
    current = {values.data(), ids.data(), values.size()};
}

// Stores the tokens whose logits are at most `width` below the highest one in `entries`.
template <typename F> void pymtp_sampler_chain::collect(float best, double width, F && distance_of) {
    entries.clear();
    for (size_t i = 0; i < current.n; ++i) {
        const double below = (double) best - current.values[i];
        if (current.values[i] != -INFINITY && below <= width) {
            entries.push_back({distance_of(below), std::exp(-below), {current.id(i), current.values[i]}});
        }
    }
}

void pymtp_sampler_chain::top_p() {
    nucleus.find(current, highest(), params.top_p, 0.0);
    const pymtp_logits kept = nucleus.logits();
    values.assign(kept.values, kept.values + kept.n);
    ids.assign(kept.ids, kept.ids + kept.n);
    current = {values.data(), ids.data(), values.size()};
}

void pymtp_sampler_chain::min_p() {
    const float best   = highest();
    const float lowest = (float) (best + std::log(params.min_p) - 1e-3); // slightly below the lowest logit to keep
    keep(lowest, [&](const pymtp_candidate & candidate) {
        return candidate.logit == best || std::exp((double) candidate.logit - best) >= params.min_p;
    });
}

// XTC ("exclude top choices"): with a certain probability, drops all tokens that reach the threshold, except for the
// least likely of them.
void pymtp_sampler_chain::exclude_top_choices(int64_t position) {
    if (pymtp_uniform(position, params.seed) >= params.xtc_probability) {
        return;
    }
    const float  best    = highest();
    const double total   = pymtp_sum_of_exp(current.values, current.n, best);
    const auto is_choice = [&](float logit) {
        return std::exp((double) logit - best) >= params.xtc_threshold * total && logit != -INFINITY;
    };
    const float lowest = (float) (best + std::log(params.xtc_threshold * total) - 1e-3);
    pymtp_candidate last = {LLAMA_TOKEN_NULL, INFINITY};
    for (size_t i = 0; i < current.n; ++i) {
        const pymtp_candidate candidate = {current.id(i), current.values[i]};
        if (candidate.logit >= lowest && last < candidate && is_choice(candidate.logit)) {
            last = candidate;
        }
    }
    if (last.id != LLAMA_TOKEN_NULL) {
        keep(-INFINITY, [&](const pymtp_candidate & candidate) { return !(candidate < last); });
    }
}

// Returns the temperature that the entropy of the distribution maps to, from temperature - range to
// temperature + range.
double pymtp_sampler_chain::dynamic_temperature() const {
    const distribution of   = describe(current, highest());
    const double       low  = std::max(0.0, params.temperature - params.dynatemp_range);
    const double       high = params.temperature + params.dynatemp_range;
    return of.n <= 1 ? 1.0 : low + (high - low) * std::pow(of.entropy / std::log(of.n), params.dynatemp_exponent);
}

void pymtp_sampler_chain::scale(bool is_last) {
    const double by = params.dynatemp_range > 0.0 ? dynamic_temperature() : params.temperature;
    if (by <= 0.0) {
        pymtp_select(current, 1, candidates);
        keep_only(candidates[0]);
    } else if (is_last) {
        temperature = by;
    } else {
        copy_values();
        for (float & value : values) {
            if (value != -INFINITY) {
                value = (float) std::clamp(value / by, -max_magnitude, max_magnitude);
            }
        }
    }
}

llama_token pymtp_sampler_chain::sample(
        const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n) {
    current     = from;
    temperature = 1.0;
    const auto is_fine = [&] {
        const auto [best, nan] = pymtp_summarize(current.values, current.n);
        return !nan && std::isfinite(best);
    };
    if (!is_fine()) {
        return LLAMA_TOKEN_NULL;
    }
    for (size_t i = 0; i < order.size(); ++i) {
        switch (order[i]) {
            case PYMTP_SAMPLER_PENALTIES:   penalize(prefix, n);             break;
            case PYMTP_SAMPLER_DRY:         penalize_repetitions(prefix, n); break;
            case PYMTP_SAMPLER_TOP_N_SIGMA: top_n_sigma();                   break;
            case PYMTP_SAMPLER_TOP_K:       top_k();                         break;
            case PYMTP_SAMPLER_TYPICAL_P:   typical_p();                     break;
            case PYMTP_SAMPLER_TOP_P:       top_p();                         break;
            case PYMTP_SAMPLER_MIN_P:       min_p();                         break;
            case PYMTP_SAMPLER_XTC:         exclude_top_choices(position);   break;
            case PYMTP_SAMPLER_TEMPERATURE: scale(i + 1 == order.size());    break;
        }
        if (!is_fine()) { // penalties of extreme size
            return LLAMA_TOKEN_NULL;
        }
    }
    return pymtp_gumbel_max(current, temperature, position, params.seed).id;
}
