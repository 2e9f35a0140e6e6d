// Learns how long rounds of several sequences take on this machine, from the rounds themselves.
#pragma once

#include "costs.h"

#include <vector>

// Seconds of rounds with any number of sequences. A draft step has one row for each sequence, a verification has 1 + n
// rows for each. The time of a decode depends on its rows, whichever sequences they belong to, so rounds of eight
// sequences also tell about rounds of seven. Outlives the requests.
struct pymtp_batch_costs {
    // Records a round of n_seqs sequences with n_past tokens each: chains of n steps, and a verification of `rows`
    // rows for each.
    // cold: no decode had as many rows before, so its memory was new. Such a timing only counts when it shows the rows
    // to be cheaper than expected.
    void observe(int n_seqs, int n_past, int n, double draft_seconds, int rows, double verify_seconds, bool cold);

    // Starts from the costs of single sequences.
    void seed(const pymtp_costs & single);

    // Starts from a round that was timed before the first one.
    void seed(int n_seqs, int n, double draft_seconds, double verify_seconds);

    bool known() const { return verify.known(); }

    // Estimates the seconds of rounds at depths 0 to max_depth: expected, and optimistic.
    void rounds(int n_seqs, int max_depth, int n_past, std::vector<double> & expected,
            std::vector<double> & optimistic);

    // Estimates one draft step of so many sequences.
    double step_seconds(int n_seqs, int n_past) const;

private:
    pymtp_cost_curve step{pymtp_tuning::ROWS};   // by number of sequences
    pymtp_cost_curve verify{pymtp_tuning::ROWS}; // by number of rows of all sequences
    // rows of the last verification: other counts are compared with it, because it was timed just now
    int last_rows = 1;
};
