// How many drafts each, for rounds of several sequences: all of a round draft as many.
#pragma once

#include "acceptance.h"
#include "batch_costs.h"
#include "depth.h"

#include <optional>
#include <vector>

// The depth that brings the most tokens a second to all sequences of a round together, by the acceptance of all their
// drafts and by what launches of so many rows take. (SmartSpec: Liu et al., "Optimizing Speculative Decoding for Serving
// Large Language Models Using Goodput", arXiv 2406.14066.)
//
// As pymtp_depth for one sequence: a depth that may be better than the best known is tried, and an allowance, in plain
// rounds, bounds what drafting may lose. Where plain rounds look best, there are peeks: one draft of each sequence is made,
// and none verified. The target's next tokens tell whether they were right, for the price of a draft step.
struct pymtp_batch_depth {
    // single: what is known of rounds of one sequence
    explicit pymtp_batch_depth(const pymtp_costs & single);

    // What a round of n sequences at that depth took, timed before the first.
    void begin(int n, int drafted, double draft_seconds, double verify_seconds);

    void forget_costs() { costs = pymtp_batch_costs{}; }

    // The drafts that each is to make, `top` at most. rooms: the drafts that each can use. opened: so many of them were not
    // there before.
    int choose(const std::vector<int> & rooms, int n_past, int top, int opened);

    // How many of the drafts just made to verify.
    int keep(int made) const { return peeking ? 0 : made; }

    // What came of a sequence in a round.
    struct outcome {
        pymtp_depth * own; // the policy for it by itself, which hears of it too; or NULL
        int told;          // drafts that the target told of, and those of them before the first wrong one
        int right;
        int came;          // tokens
    };

    // What came of the round that was chosen last.
    void observe(const std::vector<outcome> & outcomes, int n_past, int drafted, double draft_seconds, double verify_seconds);

private:
    void admit(int n, int opened);
    int  decide(const std::vector<int> & rooms, int top);
    bool promising(const std::vector<int> & rooms, int top) const;
    bool is_cold(int n, int depth) const { return n * (1 + depth) > most_rows; }

    pymtp_batch_costs               costs;
    std::optional<pymtp_acceptance> acceptance; // of all texts: what a depth brings is their mean

    double allowance;   // in plain rounds, what drafting may lose
    double peeks = 1.0; // and what peeks may take

    int  best = 0; // the depth that looks best
    int  last = 0; // the depth of the round
    int  most_rows; // of a launch so far
    bool stay    = false; // whether the next round has the depth of the last
    bool peeking = false;

    // of rounds at each depth: expected seconds, and the least that there may be
    std::vector<double> likely;
    std::vector<double> least;
};
