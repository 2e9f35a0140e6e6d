// Chooses how many tokens to draft for each sequence in rounds of several sequences: the same number for all.
#pragma once

#include "acceptance.h"
#include "batch_costs.h"
#include "depth.h"

#include <optional>
#include <vector>

// Chooses the depth (draft tokens a round) with the highest tokens/s of all sequences together, from the acceptance of
// all their drafts and from the time of decodes with so many rows. (SmartSpec: Liu et al., "Optimizing Speculative
// Decoding for Serving Large Language Models Using Goodput", arXiv 2406.14066.)
//
// The policy is that of pymtp_depth for one sequence: a depth that may be better than the best known one is tried, and
// a budget, in plain rounds, bounds how much drafting may lose. While plain rounds look best, there are peeks: one
// draft is made for each sequence and none is verified. The target's next tokens tell whether the drafts were correct,
// for the price of a draft step.
struct pymtp_batch_depth {
    // single: the known costs of rounds of one sequence
    explicit pymtp_batch_depth(const pymtp_costs & single);

    // Records a round of n sequences that was timed before the first one.
    void seed(int n, int drafted, double draft_seconds, double verify_seconds);

    void reset_costs() { costs = pymtp_batch_costs{}; }

    // Returns how many drafts to make for each sequence, at most max_depth. limits: how many drafts each sequence can
    // use. n_new: how many of the sequences are new
    int choose(const std::vector<int> & limits, int n_past, int max_depth, int n_new);

    // Returns how many of the drafts just made to verify.
    int n_to_verify(int n_drafts) const { return is_peek ? 0 : n_drafts; }

    // The result of one sequence in a round.
    struct outcome {
        pymtp_depth * own;      // the sequence's own policy, which is informed too; or NULL
        int           judged;   // drafts that the target judged
        int           correct;  // of these, the ones before the first wrong one
        int           n_tokens; // tokens produced
    };

    // Records the round that was chosen last.
    void observe(const std::vector<outcome> & outcomes, int n_past, int drafted, double draft_seconds,
            double verify_seconds);

private:
    void add_sequences(int n, int n_new);
    int  decide(const std::vector<int> & limits, int max_depth);
    bool may_pay_off(const std::vector<int> & limits, int max_depth) const;
    bool is_cold(int n, int depth) const { return n * (1 + depth) > max_rows; }

    pymtp_batch_costs               costs;
    std::optional<pymtp_acceptance> acceptance; // of all sequences: the gain of a depth is their mean

    double budget;            // how much drafting may still lose, in plain rounds
    double peek_budget = 1.0; // how much peeks may still cost, in plain rounds

    int  best  = 0; // the depth that looks best
    int  depth = 0; // the depth of the round
    int  max_rows; // the most rows that a decode has had so far
    bool repeat_depth = false; // the next round repeats the depth
    bool is_peek      = false;

    // the estimated seconds of rounds at each depth: expected, and optimistic
    std::vector<double> expected;
    std::vector<double> optimistic;
};
