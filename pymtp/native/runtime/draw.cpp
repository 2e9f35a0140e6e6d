#include "draw.h"

#include "gumbel.h"
#include "logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

constexpr double widths[] = {8.0, 16.0, INFINITY}; // below the greatest logit, that a nucleus is looked for in
constexpr size_t few      = 64;                    // tokens that are put in order

// How far from the greatest a token's 52 bits of noise may be, at most, for it to have that much noise and be no less
// than a score. A little too far, for roundings: noise may be lost beside a great score, and all tokens tie then.
uint64_t distance_for(double score, double without_noise) {
    const double noise  = score - std::abs(score) * 1e-14 - without_noise;
    const double likely = -std::expm1(-std::exp(-noise)); // that noise is more
    const double distance = likely * 0x1p52 * (1.0 + 1e-9) + 2.0;
    return distance < 0x1p53 ? (uint64_t) distance : (uint64_t) 1 << 53; // all, where scores are no numbers
}

} // namespace

pymtp_candidate pymtp_draw(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed) {
    pymtp_candidate best = {LLAMA_TOKEN_NULL, 0.0f};
    double most = -INFINITY;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        const float highest = pymtp_summarize(from.values + start, end - start).most;
        if (highest == -INFINITY) {
            continue;
        }
        // The noise takes two logarithms: it is computed only where its bits say that it might be enough.
        uint32_t tokens[PYMTP_LOGITS_BLOCK] = {};
        uint64_t noises[PYMTP_LOGITS_BLOCK];
        for (size_t i = start; i < end; ++i) {
            tokens[i - start] = from.id(i);
        }
        pymtp_philox(tokens, (uint32_t) position, seed, noises);
        uint64_t enough = distance_for(most, highest / temperature);
        for (size_t i = start; i < end; ++i) {
            if (((uint64_t) 1 << 52) - noises[i - start] > enough || from.values[i] == -INFINITY) {
                continue;
            }
            const pymtp_candidate drawn = {from.id(i), from.values[i]};
            const double score = drawn.logit / temperature + pymtp_gumbel(drawn.id, position, seed);
            if (best.id == LLAMA_TOKEN_NULL || score > most || (score == most && drawn < best)) {
                best   = drawn;
                most   = score;
                enough = distance_for(most, highest / temperature);
            }
        }
    }
    return best;
}

// The tokens whose logits are no less than that, and the sum of their weights.
double pymtp_nucleus::gather(const pymtp_logits & from, float most, float least) {
    entries.clear();
    double sum = 0.0;
    for (size_t start = 0; start < from.n; start += PYMTP_LOGITS_BLOCK) {
        const size_t end = std::min(start + PYMTP_LOGITS_BLOCK, from.n);
        if (pymtp_summarize(from.values + start, end - start).most < least) {
            continue;
        }
        for (size_t i = start; i < end; ++i) {
            if (from.values[i] >= least && from.values[i] != -INFINITY) {
                entries.push_back({std::exp((double) from.values[i] - most), {from.id(i), from.values[i]}});
                sum += entries.back().weight;
            }
        }
    }
    return sum;
}

// The weights of all others. They are little beside those that were gathered, so that few digits are enough.
double pymtp_nucleus::rest(const pymtp_logits & from, float most, float least) {
    if (least == -INFINITY) {
        return 0.0;
    }
    values.resize(from.n);
    for (size_t i = 0; i < from.n; ++i) {
        values[i] = from.values[i] >= least ? -INFINITY : from.values[i];
    }
    return pymtp_sum_of_exp(values.data(), from.n, most);
}

// Leaves the likeliest tokens that have that share of the weight together. Each step parts those among which the last of
// them is; one side of it is in, or out, as a whole.
void pymtp_nucleus::cut(double share) {
    const auto before = [](const entry & a, const entry & b) { return a.token < b.token; };
    double in = 0.0;
    size_t first = 0;
    size_t last = entries.size();
    while (last - first > few) {
        entry ends[3] = {entries[first], entries[first + (last - first) / 2], entries[last - 1]};
        std::sort(ends, ends + 3, before);
        const pymtp_candidate pivot = ends[1].token; // one at least is before it, and itself is not
        const auto middle = std::partition(entries.begin() + first, entries.begin() + last,
            [&](const entry & each) { return each.token < pivot; });
        const size_t at = middle - entries.begin();
        const double sum = std::accumulate(entries.begin() + first, middle, 0.0,
            [](double so_far, const entry & each) { return so_far + each.weight; });
        if (in + sum >= share) {
            last = at;
        } else {
            in   += sum;
            first = at;
        }
    }
    std::sort(entries.begin() + first, entries.begin() + last, before);
    while (first < last) {
        in += entries[first++].weight;
        if (in >= share) {
            break;
        }
    }
    entries.resize(first);
}

double pymtp_nucleus::find(const pymtp_logits & from, float most, double top_p, double min_p) {
    double total = 0.0;
    if (top_p < 1.0) {
        for (const double width : widths) {
            const float least = (float) (most - width);
            const double sum = gather(from, most, least);
            total = sum + rest(from, most, least);
            if (sum >= top_p * total * (1.0 + 1e-5)) {
                break;
            }
        }
        cut(top_p * total);
    } else {
        // a little less than the logit of the least likely that may stay
        const float least = (float) (most + std::log(min_p) - 1e-3);
        total = gather(from, most, least) + rest(from, most, least);
    }
    values.clear();
    ids.clear();
    for (const entry & each : entries) {
        if (each.weight >= min_p || each.token.logit == most) {
            values.push_back(each.token.logit);
            ids.push_back(each.token.id);
        }
    }
    return total;
}
