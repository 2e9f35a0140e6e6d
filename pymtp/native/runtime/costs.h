// What drafting and verifying cost on this machine, for this model: learnt from the rounds themselves.
#pragma once

#include "curve.h"

#include <vector>

// Seconds of rounds, for one model in one context on one machine. Outlives the requests.
struct pymtp_costs {
    // A chain of `drafted` steps and a verification of so many rows, after n_past tokens. run: rounds of as many right before.
    void observe(int n_past, int drafted, double draft_seconds, int rows, double verify_seconds, int run);

    // What a verification of so many rows and a chain of n steps take, measured before the first round.
    void begin_verify(int rows, double seconds);
    void begin_draft(int n, double seconds);

    // whether plain decoding was timed well enough to compare with
    bool known() const { return measured || verify.seen(1) >= pymtp_tuning::PLAIN; }

    // whether a verification of n drafts may well take something else than it is thought to
    bool unsure(int n) { return verify.doubt(1 + n, last_rows) > pymtp_tuning::SURE; }

    // the most drafts of which a verification was timed
    int deepest() const { return verify.most() - 1; }

    // the estimates for a verification of so many rows and for a chain of n steps, after n_past tokens
    double verify_seconds(int rows, int n_past) const { return verify.at(rows, n_past); }
    double draft_seconds(int n, int n_past) const;

    // what a round takes on top where the one before was of another depth: its drafts, its verification, and both
    double draft_change()  const { return draft.change(); }
    double verify_change() const { return verify.change(); }
    double change()        const { return draft.change() + verify.change(); }

    // The estimates for rounds at depths 0, plain decoding, to `top`, and the cheapest that they may turn out.
    void rounds(int top, int n_past, std::vector<double> & likely, std::vector<double> & least);

private:
    pymtp_curve draft{pymtp_tuning::CHAIN};
    pymtp_curve verify{pymtp_tuning::ROWS};
    bool measured  = false; // one row was, before the first round
    int  last_rows = 1;     // of the last verification: what is timed now is what others are compared with
};
