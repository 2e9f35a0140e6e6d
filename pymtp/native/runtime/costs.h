// Learns how long drafting and verifying take on this machine for this model, from the rounds themselves.
#pragma once

#include "cost_curve.h"

#include <vector>

// Seconds of rounds, for one model in one context on one machine. Outlives the requests.
struct pymtp_costs {
    // Records a chain of `drafted` steps and a verification of `rows` rows, after n_past tokens. repeats: how many
    // rounds with the same numbers came right before
    void observe(int n_past, int drafted, double draft_seconds, int rows, double verify_seconds, int repeats);

    // Records a verification of `rows` rows, or a chain of n steps, that was timed before the first round.
    void seed_verify(int rows, double seconds);
    void seed_draft(int n, double seconds);

    // tells whether plain decoding has been timed well enough to compare with
    bool known() const { return is_seeded || verify.n_timings(1) >= pymtp_tuning::PLAIN; }

    // tells whether the estimate of a verification of n drafts may be far off
    bool is_unsure(int n) { return verify.uncertainty(1 + n, last_rows) > pymtp_tuning::SURE; }

    // returns the largest number of drafts of which a verification was timed
    int max_timed_drafts() const { return verify.max_count() - 1; }

    // estimate a verification of `rows` rows, and a chain of n steps, after n_past tokens
    double verify_seconds(int rows, int n_past) const { return verify.seconds_at(rows, n_past); }
    double draft_seconds(int n, int n_past) const;

    // return the extra seconds of a round whose predecessor had another depth: for the drafts, the verification, and
    // both
    double draft_change_seconds()  const { return draft.change_seconds(); }
    double verify_change_seconds() const { return verify.change_seconds(); }
    double change_seconds()        const { return draft.change_seconds() + verify.change_seconds(); }

    // Estimates the seconds of rounds at depths 0 (plain decoding) to max_depth: expected, and optimistic.
    void rounds(int max_depth, int n_past, std::vector<double> & expected, std::vector<double> & optimistic);

private:
    pymtp_cost_curve draft{pymtp_tuning::CHAIN};
    pymtp_cost_curve verify{pymtp_tuning::ROWS};
    bool is_seeded = false; // plain decoding was timed before the first round
    // rows of the last verification: other counts are compared with it, because it was timed just now
    int  last_rows = 1;
};
