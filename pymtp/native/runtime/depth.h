// Chooses how many tokens to draft in the next round, for the most tokens/s. The code reads no clock and uses no random
// numbers, so the same recorded rounds always lead to the same choices.
#pragma once

#include "acceptance.h"
#include "costs.h"

#include <vector>

// Chooses the depth (number of draft tokens per round) for one sequence.
//
// The rate of a depth is the expected number of tokens of a round at that depth, divided by the seconds of the round. A
// depth that may be better than the best known depth is tried. A budget bounds the losses: it shrinks when drafting
// loses against plain decoding, and grows when drafting gains. Once the budget is used up, nothing is drafted until it
// has been refilled: each round adds a little to it.
//
// While plain decoding looks best, some rounds are peeks: they make one draft, and verify it only if the head is
// confident enough. Even without verification, the next token of the target shows whether the draft was correct. So a
// peek costs only one draft step.
struct pymtp_depth {
    // costs: the costs of the model in its context, shared by the policies of all sequences; must outlive this object
    // max_drafts: largest number of tokens to draft in a round
    // previous: the policy of an earlier sequence, whose acceptance and budgets the new one starts from, or NULL
    pymtp_depth(pymtp_costs & costs, int max_drafts, const pymtp_depth * previous);

    // Returns the depth of the next round. limit: largest number of drafts that this round allows.
    // n_past: number of tokens in the context
    int choose(int limit, int n_past);

    // Returns how many of the n drafts just made to verify. confidences: the head's probability of each draft
    int n_to_verify(const float * confidences, int n) const;

    // Records a round.
    // drafted, verified: number of drafts that were made, and number of them that were verified.
    // correct: number of drafts, from the first on, that are known to be correct.
    // draft_seconds, verify_seconds: duration of drafting, and of the verification.
    // confidences: the head's probability of each draft; n_confidences may be 0
    void observe(
            int drafted, int verified, int correct, double draft_seconds, double verify_seconds,
            const float * confidences, int n_confidences);

    // Records the sequence's drafts in a round of several sequences. Without times, which would say nothing about
    // rounds of one sequence.
    // drafted, judged: number of drafts that were made, and number of them that the target judged.
    // correct: number of judged drafts before the first wrong one
    void observe_in_batch(int drafted, int judged, int correct);

    // returns for each of the first n drafts of a chain the probability that it is accepted, given that all earlier
    // ones were
    std::vector<double> rates(int n) const { return acceptance.rates(n); }

private:
    int  decide(int max_depth);
    int  choose_best(const std::vector<double> & tokens, const std::vector<double> & seconds);
    int  choose_trial(const std::vector<double> & tokens, const std::vector<double> & seconds,
            const std::vector<double> & optimistic);
    bool may_pay_off(const std::vector<double> & optimistic) const;
    void update_budget(double gain);

    pymtp_acceptance  acceptance;
    pymtp_costs &     costs;
    const int         max_drafts;
    pymtp_calibration calibration;

    double budget;      // time that drafting may still lose, in tokens of plain decoding
    double peek_budget; // time that peeks may still cost, in tokens of plain decoding
    int    best = 0;    // the depth that looks best
    double rate = 0.0;  // tokens/s of the best depth

    // While drafting gains little, plain decoding is timed again after this many rounds with drafts.
    int  rounds_to_recheck;
    int  rounds_drafting   = 0;     // number of rounds with drafts since the last round without
    int  plain_rounds_left = 0;     // number of the next rounds that will be plain, whatever the estimates say
    int  depth             = 0;     // the depth of the current round
    int  rounds_at_depth   = 0;     // number of the next rounds that will keep the current depth
    bool is_trial          = false; // the current round tries a depth, so all its drafts are verified
    bool last_peek_correct = false; // the last round was a peek whose draft was correct, so another peek may pay off

    // For each draft of the round: the probability that it is correct, and the time that its verification takes,
    // converted to tokens at the best rate.
    std::vector<double> probabilities;
    std::vector<double> row_prices;

    int n_past        = 0;
    int prev_drafted  = -1; // drafts made and verified in the round before; `repeats`: how often both repeated
    int prev_verified = -1;
    int repeats       = 0;
};
