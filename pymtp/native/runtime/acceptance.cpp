#include "acceptance.h"

#include "tuning.h"

#include <algorithm>
#include <cmath>

using namespace pymtp_tuning;

void pymtp_acceptance::observe(int judged, int correct, int tokens) {
    if (prior && judged > 0) {
        prior->observe(judged, correct, tokens);
    }
    const double share = std::pow(prior ? DECAY : PRIOR_DECAY, tokens);
    for (record & r : positions) {
        r = {share * r.trials, share * r.hits};
    }
    const size_t n = std::min(judged, correct + 1); // the target says nothing about drafts after the first wrong one
    positions.resize(std::max(positions.size(), n));
    for (size_t i = 0; i < n; ++i) {
        positions[i].trials += 1.0;
        positions[i].hits   += (int) i < correct;
    }
}

std::vector<double> pymtp_acceptance::rates(int n) const {
    std::vector<double> expected(n, FIRST_GUESS);
    if (prior) {
        expected = prior->rates(n);
    }
    const double weight = prior ? WEIGHT : PRIOR_WEIGHT;
    std::vector<double> rates(n);
    for (int i = 0; i < n; ++i) {
        double guess = expected[i];
        if (i > 0 && prior) {
            // When the present passage is worse (or better) than usual at the position before, expect this position to
            // be worse (or better) than usual, too.
            guess *= 1 - LINK + LINK * rates[i - 1] / expected[i - 1];
        } else if (i > 0) {
            guess = FADE * rates[i - 1];
        }
        const record r = i < (int) positions.size() ? positions[i] : record();
        rates[i] = (r.hits + weight * std::min(FADE, guess)) / (r.trials + weight);
    }
    return rates;
}
