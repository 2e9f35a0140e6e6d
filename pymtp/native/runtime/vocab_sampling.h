// Samples from a whole row of logits, or from the tokens that top-p and min-p keep. Does not sort the vocabulary,
// because sorting would take longer than a round of a small model.
#pragma once

#include "logits.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

// Selects the k most likely tokens into `candidates`, in order; equal ones by rising id. k must be at most from.n.
// Returns false when a logit is not a number or the highest is not finite.
bool pymtp_select(const pymtp_logits & from, size_t k, std::vector<pymtp_candidate> & candidates);

// Returns the token with the highest sum of logit / temperature and Gumbel noise; among equal sums, the likelier token,
// then the one with the lower id. Ignores tokens with a logit of -infinity. At least one logit must be finite, and none
// may be NaN.
pymtp_candidate pymtp_gumbel_max(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed);

// Moves the first entries, in the order of operator<, whose weights add up to `share` to the front, in any order.
// Returns their number. Each step partitions the range of entries in which the last entry of these lies; one of the two
// sides is then in or out as a whole.
template <typename E> size_t pymtp_partition_share(std::vector<E> & entries, double share) {
    constexpr size_t max_sorted = 64; // ranges of up to this many entries are sorted instead of partitioned
    double sum_in = 0.0;
    size_t first = 0;
    size_t last = entries.size();
    while (last - first > max_sorted) {
        E ends[3] = {entries[first], entries[first + (last - first) / 2], entries[last - 1]};
        std::sort(ends, ends + 3);
        // the median of three, so that at least one entry is before it and at least one is not
        const E pivot = ends[1];
        const auto middle = std::partition(entries.begin() + first, entries.begin() + last,
            [&](const E & e) { return e < pivot; });
        const size_t at = middle - entries.begin();
        const double sum = std::accumulate(entries.begin() + first, middle, 0.0,
            [](double so_far, const E & e) { return so_far + e.weight; });
        if (sum_in + sum >= share) {
            last = at;
        } else {
            sum_in   += sum;
            first = at;
        }
    }
    std::sort(entries.begin() + first, entries.begin() + last);
    while (first < last) {
        sum_in += entries[first++].weight;
        if (sum_in >= share) {
            break;
        }
    }
    return first;
}

// The tokens that top-p and min-p keep, in no particular order.
class pymtp_nucleus {
public:
    // Finds the tokens that top-p and min-p keep; logits() then returns them. Returns the sum of exp(logit - highest)
    // over all tokens. highest: the highest logit, which must be finite
    double find(const pymtp_logits & from, float highest, double top_p, double min_p);

    pymtp_logits logits() const { return {values.data(), ids.data(), ids.size()}; }

private:
    struct entry {
        double          weight; // exp(logit - highest)
        pymtp_candidate token;

        bool operator<(const entry & other) const { return token < other.token; }
    };

    double collect(const pymtp_logits & from, float highest, float lowest);
    double weight_below(const pymtp_logits & from, float highest, float lowest);

    std::vector<entry>       entries;
    std::vector<float>       values;
    std::vector<llama_token> ids;
};
