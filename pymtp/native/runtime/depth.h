// Chooses how many tokens to draft next, for the most tokens/s. It reads no clock and uses no random numbers: the same
// rounds lead to the same depths.
#pragma once

#include "acceptance.h"
#include "costs.h"

#include <vector>

// Chooses the depth (draft tokens a round) for one sequence.
//
// The rate of a depth is the expected tokens of its round divided by the seconds of its round. A depth that may be
// better than the best known one is tried. A budget bounds the losses: it shrinks by what drafting loses against plain
// decoding, and grows by its gains. Once it is used up, there is only plain decoding, until a small share of every
// token has refilled it.
//
// While plain decoding looks best, there are peeks: one draft is made, and verified only if the head is confident
// enough. The target's next token tells whether the draft was correct all the same, for the price of a draft step.
struct pymtp_depth {
    // costs: of the model in its context, shared by all sequences; they must outlive this
    // max_drafts: the most tokens to draft in a round
    // previous: an earlier sequence that this one may resemble at first, or NULL
    pymtp_depth(pymtp_costs & costs, int max_drafts, const pymtp_depth * previous);

    // Returns the depth of the next round. limit: the most drafts allowed now. n_past: tokens in the context
    int choose(int limit, int n_past);

    // Returns how many of the drafts just made to verify. confidences: the head's probability of each
    int n_to_verify(const float * confidences, int n) const;

    // Records a round: how many drafts were made and verified, how many are known to be correct, the seconds of both
    // phases, and the head's probability of each draft made, or none.
    void observe(
            int drafted, int verified, int correct, double draft_seconds, double verify_seconds,
            const float * confidences, int n_confidences);

    // Records the sequence's drafts in a round of several sequences: those made, those that the target judged, and of
    // these the ones before the first wrong one. The time of such a round says nothing about rounds of one sequence.
    void observe_in_batch(int drafted, int judged, int correct);

    // returns how likely each of the first n drafts is accepted, given that those before it were
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

    double budget;      // how much drafting may still lose, in tokens
    double peek_budget; // how much peeks may still cost, in tokens
    int    best = 0;    // the depth that looks best
    double rate = 0.0;  // its tokens/s

    // rounds with drafts after which plain decoding is timed again, while drafting gains little
    int  rounds_to_recheck;
    int  rounds_drafting   = 0;     // rounds with drafts since the last one without
    int  plain_rounds_left = 0;     // plain rounds that are still to come in any case
    int  depth             = 0;     // the depth of the current round
    int  rounds_at_depth   = 0;     // rounds that are still to come with that depth
    bool is_trial          = false; // the current round tries a depth: all its drafts are verified
    bool last_peek_correct = false; // the last round was a peek at a correct draft, so the next may pay off, too

    // for each draft of the round: the probability that it is correct, and its row's time in tokens at the best rate
    std::vector<double> probabilities;
    std::vector<double> row_prices;

    int n_past        = 0;
    int prev_drafted  = -1; // the numbers of the round before, and how often they have been repeated
    int prev_verified = -1;
    int repeats       = 0;
};
