#include "acceptance.h"

#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

using namespace pymtp_tuning;

void pymtp_acceptance::fade(double tokens) {
    const double share = std::pow(prior ? DECAY : PRIOR_DECAY, tokens);
    for (record & r : positions) {
        r = {share * r.trials, share * r.hits};
    }
}

void pymtp_acceptance::add(size_t position, double hits, double trials) {
    positions.resize(std::max(positions.size(), position + 1));
    positions[position].hits   += hits;
    positions[position].trials += trials;
}

void pymtp_acceptance::observe(int judged, int correct, const std::vector<double> & unjudged, int tokens) {
    fade(tokens);
    if (judged == 0) {
        unseen += tokens;
        return;
    }
    if (prior) {
        prior->fade(unseen + tokens);
    }
    for (pymtp_acceptance * memory : {this, prior}) {
        double weight = memory == prior ? 1.0 + unseen : 1.0;
        for (int i = 0; memory && i < std::min(judged, correct + 1); ++i) {
            memory->add(i, weight * (i < correct), weight); // nothing is known of drafts after the first wrong one
        }
        for (size_t i = 0; memory && correct == judged && i < unjudged.size(); ++i) {
            memory->add(judged + i, weight * unjudged[i], weight);
            weight *= unjudged[i];
        }
    }
    unseen = 0.0;
}

std::vector<double> pymtp_acceptance::rates(int n) const {
    std::vector<double> expected(n, FIRST_GUESS);
    if (prior) {
        expected = prior->rates(n);
    }
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
        rates[i] = (r.hits + WEIGHT * std::min(FADE, guess)) / (r.trials + WEIGHT);
    }
    return rates;
}

static int find_bin(double confidence) {
    return std::upper_bound(std::begin(BINS), std::end(BINS), confidence) - std::begin(BINS);
}

pymtp_calibration::pymtp_calibration() {
    static_assert(std::size(BINS) + 1 == N_BINS, "one bin more than boundaries");
    std::fill_n(hits, N_BINS, FIRST_GUESS);
    std::fill_n(misses, N_BINS, 1 - FIRST_GUESS);
}

void pymtp_calibration::observe(double confidence, bool accepted) {
    // The bin forgets towards its first state, which is the weight of one draft with odds of FIRST_GUESS.
    const int i = find_bin(confidence);
    hits[i]   += accepted  + (1 - BIN_DECAY) * (FIRST_GUESS     - hits[i]);
    misses[i] += !accepted + (1 - BIN_DECAY) * (1 - FIRST_GUESS - misses[i]);
}

double pymtp_calibration::probability(double confidence, double expected) const {
    const int    i       = find_bin(confidence);
    const double overall = std::accumulate(hits, hits + N_BINS, 0.0) / std::accumulate(misses, misses + N_BINS, 0.0);
    const double odds    = hits[i] / misses[i] * std::sqrt(expected / (1 - expected) / overall);

    return std::min(FADE, 1 - 1 / (1 + odds)); // written this way because it also gives 1 for infinite odds
}
