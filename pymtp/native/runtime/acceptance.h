// How likely the drafts of a round are accepted: by their position in the chain, and by the head's own confidence.
#pragma once

#include <cstddef>
#include <vector>

// How likely each draft of a chain is accepted, given that the ones before it were; recent rounds weigh most.
struct pymtp_acceptance {
    // after: an earlier sequence, whose long run is where this one starts, at the weight of some drafts; or NULL
    explicit pymtp_acceptance(const pymtp_acceptance * after = nullptr);

    // so many tokens came: what was seen lately before them weighs less
    void fade(int tokens);

    // A round: of the drafts that the target told of, the first `right` were right.
    // untold: of the drafts after them, how likely each was right if the one before it was. They count for what they
    // probably were: without them only the promising ones would be left to count.
    // tokens: that came of the round.
    void observe(int told, int right, const std::vector<double> & untold, int tokens);

    // For the first n drafts, the probability that each is accepted, given that those before it were.
    // right: so many right drafts are imagined at every position, for how good it may turn out.
    std::vector<double> rates(int n, double right = 0.0) const;

private:
    struct record {
        double trials = 0.0;
        double hits   = 0.0;
    };
    struct position {
        record lately;
        record long_run;
    };
    void add(size_t i, double hits, double trials);

    std::vector<position> positions;
};

// What the head's probability of its own draft says about acceptance. Odds are those of the bin that the probability is in
// against all bins (the likelihood ratio, learnt from drafts), times the mean of two: what the position says, which knows
// the passage, and all drafts, which the bins were learnt from.
struct pymtp_calibration {
    pymtp_calibration();

    // a draft whose predecessors were right
    void observe(double confidence, bool accepted);

    // how likely a draft is accepted, going by its position, which says `expected`, and the head's probability
    double probability(double confidence, double expected) const;

private:
    static constexpr int N_BINS = 5;

    double hits[N_BINS];
    double misses[N_BINS];
};

// Expected tokens of a round at each depth from 0 to the number of rates: 1 + a1 + a1*a2 + ... + a1*...*an.
// Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), equation 1, with an
// acceptance for each position in place of one for all.
std::vector<double> pymtp_expected_tokens(const std::vector<double> & rates);
