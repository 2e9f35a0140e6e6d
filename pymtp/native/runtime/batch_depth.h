// Chooses how many tokens to draft for each sequence in a round of several sequences. All of its sequences draft the
// same number.
#pragma once

#include "acceptance.h"
#include "batch_costs.h"
#include "depth.h"

#include <optional>
#include <vector>

// Chooses the depth (number of draft tokens per sequence and round) with the highest tokens/s of all sequences
// together, from the acceptance of all their drafts and from the time that decodes take by their number of rows.
// (SmartSpec: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv
// 2406.14066.)
//
// The policy is the same as for one sequence (pymtp_depth). A depth that may be better than the best known depth is
// tried, and a budget bounds how much time drafting may lose against plain rounds. While plain rounds look best, some
// rounds are peeks: they make one draft for each sequence and verify none. The next tokens of the target show whether
// these drafts were correct. So a peek costs only one draft step.
struct pymtp_batch_depth {
    // single: the costs of rounds of one sequence, known so far
    explicit pymtp_batch_depth(const pymtp_costs & single);

    // Records a round of n sequences with `drafted` drafts each that was timed before the first real round.
    void seed(int n, int drafted, double draft_seconds, double verify_seconds);

    void reset_costs() { costs = pymtp_batch_costs{}; }

    // Returns how many drafts to make for each sequence, at most max_depth. limits: for each sequence, the most drafts
    // that it can use.
    // n_new: number of sequences that were not in the round before
    int choose(const std::vector<int> & limits, int n_past, int max_depth, int n_new);

    // Returns how many of the drafts just made to verify.
    int n_to_verify(int n_drafts) const { return is_peek ? 0 : n_drafts; }

    // The result of a round for one sequence.
    struct outcome {
        pymtp_depth * own;      // the policy of this sequence alone, which learns from the round as well; NULL: none
        int           judged;   // number of drafts that the target judged
        int           correct;  // number of judged drafts before the first wrong one
        int           n_tokens; // number of tokens that the round produced for the sequence
    };

    // Records the round whose depth the last call of choose() returned. outcomes: one for each sequence.
    void observe(const std::vector<outcome> & outcomes, int n_past, int drafted, double draft_seconds,
            double verify_seconds);

private:
    void add_sequences(int n, int n_new);
    int  decide(const std::vector<int> & limits, int max_depth);
    bool may_pay_off(const std::vector<int> & limits, int max_depth) const;
    bool is_cold(int n, int depth) const { return n * (1 + depth) > max_rows; }

    pymtp_batch_costs               costs;
    // of all sequences together, because only the sum of their tokens matters
    std::optional<pymtp_acceptance> acceptance;

    double budget;            // time that drafting may still lose, in plain rounds
    double peek_budget = 1.0; // time that peeks may still cost, in plain rounds

    int  best  = 0; // the depth that looks best
    int  depth = 0; // the depth of the current round
    int  max_rows; // largest number of rows of any decode so far
    bool repeat_depth = false; // the next round must have the same depth again
    bool is_peek      = false;

    // estimated seconds of a round at each depth, expected and optimistic
    std::vector<double> expected;
    std::vector<double> optimistic;
};
