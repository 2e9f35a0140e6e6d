// Draws from all tokens of a row, or from those that top-p and min-p leave, without putting a vocabulary in order: that
// takes longer than a round of a small model.
#pragma once

#include "logits.h"

#include <cstdint>
#include <vector>

// The token with the highest sum of logit / temperature and noise; the likelier of two that tie, then the lower id. Tokens
// with a logit of -infinity are none. Needs another logit than that, and no NaN.
pymtp_candidate pymtp_draw(const pymtp_logits & from, double temperature, int64_t position, uint64_t seed);

// The tokens that top-p and min-p leave, in no order.
class pymtp_nucleus {
public:
    // most: the greatest of the logits, which is finite. Returns the sum of exp(logit - most) of all tokens.
    double find(const pymtp_logits & from, float most, double top_p, double min_p);

    pymtp_logits logits() const { return {values.data(), ids.data(), ids.size()}; }

private:
    struct entry {
        double          weight; // exp(logit - most)
        pymtp_candidate token;
    };

    double gather(const pymtp_logits & from, float most, float least);
    void   cut(double share);
    double rest(const pymtp_logits & from, float most, float least);

    std::vector<entry>       entries;
    std::vector<float>       values;
    std::vector<llama_token> ids;
};
