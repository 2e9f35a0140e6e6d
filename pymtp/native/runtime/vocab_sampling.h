// Samples from a whole row of logits, or from the tokens that top-p and min-p keep. Does not sort the vocabulary,
// because sorting would take longer than a round of a small model.
#pragma once

#include "logits.h"

#include <cstdint>
#include <vector>

// Returns the token with the highest sum of logit / temperature and Gumbel noise; among equal sums, the likelier token,
// then the one with the lower id. Ignores tokens with a logit of -infinity. At least one logit must be finite, and none
// may be NaN.
pymtp_candidate pymtp_gumbel_max(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed);

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
    };

    double collect(const pymtp_logits & from, float highest, float lowest);
    void   keep_top_share(double share);
    double weight_below(const pymtp_logits & from, float highest, float lowest);

    std::vector<entry>       entries;
    std::vector<float>       values;
    std::vector<llama_token> ids;
};
