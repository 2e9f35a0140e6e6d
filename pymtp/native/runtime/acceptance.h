// Estimates how likely drafts are accepted, by their position in the chain and by the head's own confidence.
#pragma once

#include <cstddef>
#include <vector>

// The probability that each draft of a chain is accepted, given that those before it were. Recent rounds weigh most.
struct pymtp_acceptance {
    // previous: an earlier sequence, or NULL. This one starts with its long-run record, at the weight of some drafts.
    explicit pymtp_acceptance(const pymtp_acceptance * previous = nullptr);

    // Lowers the weight of recent observations, after so many more tokens.
    void fade(int tokens);

    // Records a round. The target judged the first `judged` drafts, of which the first `correct` were correct.
    // unjudged: for each draft after them, the probability that it was correct if the one before it was. They count
    // with these probabilities; otherwise only the promising drafts, which were verified, would count.
    // tokens: the tokens that the round produced
    void observe(int judged, int correct, const std::vector<double> & unjudged, int tokens);

    // Returns, for the first n drafts, the probability that each is accepted, given that those before it were.
    // imagined: a number of correct drafts to add at every position, for an optimistic estimate
    std::vector<double> rates(int n, double imagined = 0.0) const;

private:
    struct record {
        double trials = 0.0;
        double hits   = 0.0;
    };
    struct position {
        record recent;
        record long_run;
    };
    void add(size_t i, double hits, double trials);

    std::vector<position> positions;
};

// Turns the head's probability of its own draft into a probability of acceptance. The odds are the likelihood ratio of
// the bin that the head's probability is in (learnt from drafts), times the geometric mean of two prior odds: those of
// the position, which reflect the passage, and those of all drafts, which the bins were learnt from.
struct pymtp_calibration {
    pymtp_calibration();

    // Records a draft whose predecessors were all correct.
    void observe(double confidence, bool accepted);

    // Returns how likely a draft is accepted. expected: its probability by position
    double probability(double confidence, double expected) const;

private:
    static constexpr int N_BINS = 5;

    double hits[N_BINS];
    double misses[N_BINS];
};

// Returns the expected tokens of a round at each depth from 0 to the number of rates: 1 + a1 + a1*a2 + ... + a1*...*an.
// Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), equation 1, with an
// acceptance rate for each position instead of one for all.
std::vector<double> pymtp_expected_tokens(const std::vector<double> & rates);
