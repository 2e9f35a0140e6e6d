// How many drafts next: as many as bring the most tokens a second. Nothing here looks at a clock or draws a random
// number: the same rounds lead to the same depths.
#pragma once

#include "acceptance.h"
#include "costs.h"

#include <vector>

// The depth that brings the most tokens a second, for one sequence.
//
// A depth is worth the expected tokens of its round by the seconds of its round. One that may be better than the best
// known is tried. Whatever is drafted, an allowance goes down by what it loses against plain decoding, up by what it
// gains: where it is used up, there is plain decoding, until a small share of that has made up for it.
//
// Where plain decoding looks best, there are peeks: a draft is made, and verified only where the head is sure enough.
// The target's next token tells whether it was right all the same, for the price of a draft step.
struct pymtp_depth {
    // costs: of the model and its context, shared by all sequences; they must live as long.
    // most: the most tokens to draft a round.
    // after: an earlier sequence, which this one may resemble at first, or NULL.
    pymtp_depth(pymtp_costs & costs, int most, const pymtp_depth * after);

    // The depth of the next round. room: the most drafts allowed now. n_past: tokens that the context holds.
    int choose(int room, int n_past);

    // How many of the drafts just made to verify, by the head's probability of each.
    int keep(const float * confidences, int n) const;

    // What came of a round: how many drafts were made, verified and, as far as the target told, right, what both took,
    // and the head's probability of each draft made, or none.
    void observe(
            int drafted, int verified, int right, double draft_seconds, double verify_seconds,
            const float * confidences, int n_confidences);

    // What came of its drafts in a round of several sequences: those made, those that the target told of, and those of them
    // before the first wrong one. What the round took tells nothing of rounds of one.
    void observe_company(int drafted, int told, int right);

    // how likely each of the first n drafts is accepted, where those before it were
    std::vector<double> rates(int n) const { return acceptance.rates(n); }

private:
    int  decide(int top);
    int  best_of(const std::vector<double> & tokens, const std::vector<double> & seconds);
    int  trial(const std::vector<double> & tokens, const std::vector<double> & seconds, const std::vector<double> & least);
    bool hopeful(const std::vector<double> & least) const;
    void earn(double gain);

    pymtp_acceptance  acceptance;
    pymtp_costs &     costs;
    const int         most;
    pymtp_calibration calibration;

    double allowance;  // in tokens
    double peeks;      // and of that for peeks
    int    best = 0;   // the depth that looks best
    double rate = 0.0; // its tokens a second

    int recheck;      // rounds with drafts, where drafting gains little, until plain decoding is timed again
    int drafting = 0; // rounds with drafts since the last one without
    int rest     = 0; // plain rounds to come, whatever happens
    int last     = 0; // the depth of the round, and those to come that keep to it
    int steady   = 0;
    bool trying       = false; // whether the round tries a depth: all that is drafted is verified
    bool peeked_right = false; // whether the round before was a peek at a draft that was right: the next may be, too

    // of each draft of the round: how likely it was thought right, and the tokens that its row would bring elsewhere
    std::vector<double> expected;
    std::vector<double> prices;

    int n_past = 0;
    int before_drafted  = -1; // of the round before, and how often in a row
    int before_verified = -1;
    int run = 0;
};
