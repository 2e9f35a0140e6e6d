#include "vocab_sampling.h"

#include "gumbel.h"
#include "logits.h"

#include <algorithm>
#include <cmath>

namespace {

// The tokens that top-p keeps are searched among logits that are at most this much below the highest one: first with
// the first width, then with the next if that was too narrow.
constexpr double widths[]   = {8.0, 16.0, INFINITY};

// Returns how far the 52 bits of a token's noise may be below their largest value so that the token can still reach the
// score. without_noise: the token's score before noise. The result is slightly too large, to be safe from rounding:
// next to a large score, noise may vanish, and then all tokens tie.
uint64_t max_noise_distance(double score, double without_noise) {
    const double noise    = score - std::abs(score) * 1e-14 - without_noise;
    const double likely   = -std::expm1(-std::exp(-noise)); // probability that the noise exceeds `noise`
    const double distance = likely * 0x1p52 * (1.0 + 1e-9) + 2.0;
    return distance < 0x1p53 ? (uint64_t) distance : (uint64_t) 1 << 53; // also if `distance` is not a number
}

} // namespace

bool pymtp_select(const pymtp_logits & from, size_t k, std::vector<pymtp_candidate> & candidates) {
    candidates.clear();
    bool all_numbers = true;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        const auto [highest, nan] = pymtp_summarize(from.values + start, end - start);
        all_numbers &= !nan;
        // The block is skipped if its highest logit is not above that of the last candidate. If the logits are equal, a
        // token replaces the candidate only if its id is lower, which cannot happen when ids rise.
        if (candidates.size() == k && !(highest > candidates.front().logit) &&
                !(from.ids && highest == candidates.front().logit)) {
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
    return all_numbers && std::isfinite(candidates.front().logit);
}

pymtp_candidate pymtp_gumbel_max(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed) {
    pymtp_candidate best = {LLAMA_TOKEN_NULL, 0.0f};
    double best_score = -INFINITY;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        const float block_max = pymtp_summarize(from.values + start, end - start).highest;
        if (block_max == -INFINITY) {
            continue;
        }
        // Computing the noise takes two logarithms, so it is computed only for tokens whose bits show that the noise
        // may suffice.
        uint32_t tokens[PYMTP_LOGITS_BLOCK] = {};
        uint64_t noises[PYMTP_LOGITS_BLOCK];
        for (size_t i = start; i < end; ++i) {
            tokens[i - start] = from.id(i);
        }
        pymtp_philox(tokens, (uint32_t) position, seed, noises);
        uint64_t max_distance = max_noise_distance(best_score, block_max / temperature);
        for (size_t i = start; i < end; ++i) {
            if (((uint64_t) 1 << 52) - noises[i - start] > max_distance || from.values[i] == -INFINITY) {
                continue;
            }
            const pymtp_candidate candidate = {from.id(i), from.values[i]};
            const double score = candidate.logit / temperature + pymtp_gumbel(candidate.id, position, seed);
            if (best.id == LLAMA_TOKEN_NULL || score > best_score || (score == best_score && candidate < best)) {
                best         = candidate;
                best_score   = score;
                max_distance = max_noise_distance(best_score, block_max / temperature);
            }
        }
    }
    return best;
}

// Stores all tokens whose logits are at least `lowest` in `entries`. Returns the sum of the weights of these tokens.
double pymtp_nucleus::collect(const pymtp_logits & from, float highest, float lowest) {
    entries.clear();
    double sum = 0.0;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        if (pymtp_summarize(from.values + start, end - start).highest < lowest) {
            continue;
        }
        for (size_t i = start; i < end; ++i) {
            if (from.values[i] >= lowest && from.values[i] != -INFINITY) {
                entries.push_back({std::exp((double) from.values[i] - highest), {from.id(i), from.values[i]}});
                sum += entries.back().weight;
            }
        }
    }
    return sum;
}

// Returns the sum of the weights of the tokens whose logits are below `lowest`. The sum is small beside the weight of
// the collected tokens, so low precision suffices.
double pymtp_nucleus::weight_below(const pymtp_logits & from, float highest, float lowest) {
    if (lowest == -INFINITY) {
        return 0.0;
    }
    values.resize(from.n);
    for (size_t i = 0; i < from.n; ++i) {
        values[i] = from.values[i] >= lowest ? -INFINITY : from.values[i];
    }
    return pymtp_sum_of_exp(values.data(), from.n, highest);
}

double pymtp_nucleus::find(const pymtp_logits & from, float highest, double top_p, double min_p) {
    double total = 0.0;
    if (top_p < 1.0) {
        for (const double width : widths) {
            const float lowest = (float) (highest - width);
            const double sum = collect(from, highest, lowest);
            total = sum + weight_below(from, highest, lowest);
            if (sum >= top_p * total * (1.0 + 1e-5)) {
                break;
            }
        }
        entries.resize(pymtp_partition_share(entries, top_p * total));
    } else {
        // slightly below the lowest logit that min-p keeps
        const float lowest = (float) (highest + std::log(min_p) - 1e-3);
        total = collect(from, highest, lowest) + weight_below(from, highest, lowest);
    }
    values.clear();
    ids.clear();
    for (const entry & e : entries) {
        if (e.weight >= min_p || e.token.logit == highest) {
            values.push_back(e.token.logit);
            ids.push_back(e.token.id);
        }
    }
    return total;
}
