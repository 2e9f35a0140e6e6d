// Learns how long drafting and verifying take on this machine with this model, from timings of the rounds.
#pragma once

#include "cost_curve.h"

#include <vector>

// Estimates the seconds of rounds of one sequence, for one model in one context on one machine. The estimates are kept
// from one request to the next.
struct pymtp_costs {
    // Records a chain of `drafted` steps and a verification of `rows` rows, after n_past tokens. repeats: number of
    // rounds with the same `drafted` and `rows` directly before this one
    void observe(int n_past, int drafted, double draft_seconds, int rows, double verify_seconds, int repeats);

    // Record the seconds of a verification of `rows` rows, and of a chain of n steps, that were timed before the first
    // round.
    void seed_verify(int rows, double seconds);
    void seed_draft(int n, double seconds);

    // returns whether plain decoding was timed often enough that other depths can be compared with it
    bool known() const { return is_seeded || verify.n_timings(1) >= pymtp_tuning::PLAIN; }

    // returns whether the estimated time of a verification of n drafts may be far off
    bool is_unsure(int n) { return verify.uncertainty(1 + n, last_rows) > pymtp_tuning::SURE; }

    // returns the largest number of drafts for which a verification was timed
    int max_timed_drafts() const { return verify.max_count() - 1; }

    // return the estimated seconds of a verification of `rows` rows, and of a chain of n steps, after n_past tokens
    double verify_seconds(int rows, int n_past) const { return verify.seconds_at(rows, n_past); }
    double draft_seconds(int n, int n_past) const;

    // return the extra seconds that a change of depth costs in the first round after it: for drafting, for the
    // verification, and for both together
    double draft_change_seconds()  const { return draft.change_seconds(); }
    double verify_change_seconds() const { return verify.change_seconds(); }
    double change_seconds()        const { return draft.change_seconds() + verify.change_seconds(); }

    // Estimates the seconds of a round at each depth from 0 (plain decoding) to max_depth. expected: receives the best
    // estimates.
    // optimistic: receives estimates that are as low as seems possible
    void rounds(int max_depth, int n_past, std::vector<double> & expected, std::vector<double> & optimistic);

private:
    pymtp_cost_curve draft{pymtp_tuning::CHAIN};
    pymtp_cost_curve verify{pymtp_tuning::ROWS};
    bool is_seeded = false; // plain decoding was timed before the first round
    // Number of rows of the last verification. Other numbers of rows are compared with it, because its timing is the
    // newest.
    int  last_rows = 1;
};
