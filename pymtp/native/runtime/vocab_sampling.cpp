#include "vocab_sampling.h"

#include "gumbel.h"
#include "logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

// below the highest logit: ranges to look for a nucleus in, one after the other
constexpr double widths[]   = {8.0, 16.0, INFINITY};
constexpr size_t max_sorted = 64; // candidates from which on sorting replaces partitioning

// Returns how far a token's 52 bits of noise may be below the largest value for its total to still reach the score.
// Slightly too far, because of rounding: noise may vanish next to a large score, and then all tokens tie.
uint64_t max_noise_distance(double score, double without_noise) {
    const double noise    = score - std::abs(score) * 1e-14 - without_noise;
    const double likely   = -std::expm1(-std::exp(-noise)); // probability of more noise than that
    const double distance = likely * 0x1p52 * (1.0 + 1e-9) + 2.0;
    return distance < 0x1p53 ? (uint64_t) distance : (uint64_t) 1 << 53; // also when a score is not a number
}

} // namespace

pymtp_candidate pymtp_gumbel_max(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed) {
    pymtp_candidate best = {LLAMA_TOKEN_NULL, 0.0f};
    double best_score = -INFINITY;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        const float block_max = pymtp_summarize(from.values + start, end - start).highest;
        if (block_max == -INFINITY) {
            continue;
        }
        // The noise takes two logarithms: it is only computed when its bits say that it might suffice.
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

// Collects the tokens whose logits are at least `lowest`. Returns the sum of their weights.
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

// Returns the weight of all other tokens. It is small beside the collected weight, so a few digits suffice.
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

// Keeps the most likely tokens that together have that share of the weight. Each step partitions the range that holds
// the last of them; one side is then kept or dropped as a whole.
void pymtp_nucleus::keep_top_share(double share) {
    const auto before = [](const entry & a, const entry & b) { return a.token < b.token; };
    double sum_in = 0.0;
    size_t first = 0;
    size_t last = entries.size();
    while (last - first > max_sorted) {
        entry ends[3] = {entries[first], entries[first + (last - first) / 2], entries[last - 1]};
        std::sort(ends, ends + 3, before);
        const pymtp_candidate pivot = ends[1].token; // at least one entry is before it, and it is not before itself
        const auto middle = std::partition(entries.begin() + first, entries.begin() + last,
            [&](const entry & e) { return e.token < pivot; });
        const size_t at = middle - entries.begin();
        const double sum = std::accumulate(entries.begin() + first, middle, 0.0,
            [](double so_far, const entry & e) { return so_far + e.weight; });
        if (sum_in + sum >= share) {
            last = at;
        } else {
            sum_in   += sum;
            first = at;
        }
    }
    std::sort(entries.begin() + first, entries.begin() + last, before);
    while (first < last) {
        sum_in += entries[first++].weight;
        if (sum_in >= share) {
            break;
        }
    }
    entries.resize(first);
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
        keep_top_share(top_p * total);
    } else {
        // slightly below the logit of the least likely token that may stay
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
