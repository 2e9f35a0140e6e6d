// Estimates how likely drafts are accepted, from their position in the chain and from the head's confidence in them.
#pragma once

#include <cstddef>
#include <vector>

// Turns the head's probability of its own draft into a probability of acceptance. The odds of acceptance are a product
// of two factors. The first is the odds in the bin that the head's probability falls into, which are learnt from
// drafts. The second corrects them for the present passage of text: by the square root of the ratio between the odds
// that the draft's position suggests and the odds of all drafts.
class pymtp_calibration {
public:
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

// Remembers the acceptance of drafts, and estimates for each position in a chain of drafts the probability that the
// draft is accepted, given that all earlier drafts of the chain were. Recent drafts weigh most.
//
// There are two kinds of memories. The prior of an LLM lasts for some hundred tokens of all its texts. In it, a draft
// after rounds without drafts stands for all of these, so that it is not made of easy passages only. The memory of a
// sequence lasts for some twenty tokens; where it has few drafts, it expects what the prior says. The calibration of
// the head's confidence belongs to the prior: it depends on model and temperature, not on the passage of text.
struct pymtp_acceptance {
    // prior: the memory that the sequence shares with others, and which must outlive it; NULL: this is a prior
    explicit pymtp_acceptance(pymtp_acceptance * prior = nullptr) : prior(prior) {}

    // Records a round, here and in the prior. The target judged the first `judged` drafts, of which the first `correct`
    // were correct.
    // unjudged: for each draft that the target did not judge, the probability that it was correct, given that the draft
    // before it was. Unjudged drafts count with these: if only judged ones counted, these would be the promising ones
    // tokens: number of tokens that the round produced
    void observe(int judged, int correct, const std::vector<double> & unjudged, int tokens);

    // Returns for each of the first n drafts of a chain the probability that it is accepted, given that all earlier
    // ones were.
    std::vector<double> rates(int n) const;

    // returns the calibration that all sequences of the prior share
    pymtp_calibration & calibration() { return prior ? prior->own_calibration : own_calibration; }

private:
    struct record {
        double trials = 0.0;
        double hits   = 0.0;
    };

    void fade(double tokens);
    void add(size_t position, double hits, double trials);

    pymtp_acceptance *  prior;
    std::vector<record> positions;
    double              unseen = 0.0;    // number of tokens since the last draft
    pymtp_calibration   own_calibration; // used in a prior only
};
