// Estimates how likely drafts are accepted, from their position in the chain.
#pragma once

#include <vector>

// Remembers the acceptance of drafts, and estimates for each position in a chain of drafts the probability that the
// draft is accepted, given that all earlier drafts of the chain were. Recent drafts weigh most.
//
// There are two kinds of memories. The prior of an LLM lasts for some hundred tokens of all its texts. The memory of a
// sequence lasts for some twenty tokens; where it has few drafts, it expects what the prior says.
struct pymtp_acceptance {
    // prior: the memory that the sequence shares with others, and which must outlive it; NULL: this is a prior
    explicit pymtp_acceptance(pymtp_acceptance * prior = nullptr) : prior(prior) {}

    // Records a round, here and in the prior. The target judged the first `judged` drafts, of which the first `correct`
    // were correct.
    // tokens: number of tokens that the round produced
    void observe(int judged, int correct, int tokens);

    // Returns for each of the first n drafts of a chain the probability that it is accepted, given that all earlier
    // ones were.
    std::vector<double> rates(int n) const;

private:
    struct record {
        double trials = 0.0;
        double hits   = 0.0;
    };

    pymtp_acceptance *  prior;
    std::vector<record> positions;
};
