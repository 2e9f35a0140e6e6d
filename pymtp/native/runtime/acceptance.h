// Estimates how likely drafts are accepted, from their position in the chain and from the head's confidence in them.
#pragma once

#include <cstddef>
#include <vector>

// Estimates for each position in a chain of drafts the probability that the draft is accepted, given that all earlier
// drafts of the chain were. Recent rounds weigh most.
struct pymtp_acceptance {
    // previous: the acceptance of an earlier sequence, or NULL. The new object starts from the rates of the earlier
    // one, with the weight of only a few drafts.
    explicit pymtp_acceptance(const pymtp_acceptance * previous = nullptr);

    // Lowers the weight of the observations in the recent records, because `tokens` more tokens have been generated.
    void fade(int tokens);

    // Records a round. The target judged the first `judged` drafts, of which the first `correct` were correct.
    // unjudged: for each draft that the target did not judge, the probability that it was correct, given that the draft
    // before it was. Unjudged drafts count with these probabilities; otherwise only promising drafts, which are the
    // ones that get verified, would count.
    // tokens: number of tokens that the round produced
    void observe(int judged, int correct, const std::vector<double> & unjudged, int tokens);

    // Returns for each of the first n drafts of a chain the probability that it is accepted, given that all earlier
    // ones were. imagined: number of correct drafts to add to the record of every position, for an optimistic estimate
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

// Turns the head's probability of its own draft into a probability of acceptance. The odds of acceptance are a product
// of two factors. The first is the likelihood ratio of the bin that the head's probability falls into, which is learnt
// from drafts. The second is the geometric mean of two prior odds: those of the draft's position, which reflect the
// current passage of text, and those of all drafts that the bins were learnt from.
struct pymtp_calibration {
    pymtp_calibration();

    // Records whether a draft was accepted. All earlier drafts of its chain must have been correct.
    void observe(double confidence, bool accepted);

    // Returns how likely a draft is accepted. confidence: the head's probability of the draft.
    // expected: the probability of acceptance that the draft's position alone suggests
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
