// Learns how long rounds of several sequences take on this machine, from timings of these rounds.
#pragma once

#include "costs.h"

#include <vector>

// Estimates the seconds of rounds with any number of sequences. A draft step has one row for each sequence; a
// verification of n drafts has 1 + n rows for each sequence. The time of a decode depends on its number of rows, not on
// the sequences that the rows belong to. So timings of rounds of eight sequences also improve the estimate for seven.
// The estimates are kept from one request to the next.
struct pymtp_batch_costs {
    // Records a round of n_seqs sequences with n_past earlier tokens each. The round made a chain of n drafts for each
    // sequence, and verified `rows` rows of each sequence.
    // cold: no earlier decode had this many rows, so the round had to allocate memory. Its timing counts only if it is
    // lower than expected.
    void observe(int n_seqs, int n_past, int n, double draft_seconds, int rows, double verify_seconds, bool cold);

    // Initialises the estimates from the costs of rounds of a single sequence.
    void seed(const pymtp_costs & single);

    // Initialises the estimates from a round of n_seqs sequences with n drafts each, timed before the first real round.
    void seed(int n_seqs, int n, double draft_seconds, double verify_seconds);

    bool known() const { return verify.known(); }

    // Estimates the seconds of a round at each depth from 0 to max_depth. expected: receives the best estimates.
    // optimistic: receives estimates that are as low as seems possible
    void rounds(int n_seqs, int max_depth, int n_past, std::vector<double> & expected,
            std::vector<double> & optimistic);

    // Estimates the seconds of one draft step of n_seqs sequences.
    double step_seconds(int n_seqs, int n_past) const;

private:
    pymtp_cost_curve step{pymtp_tuning::ROWS};   // seconds of a draft step as a function of the number of sequences
    // seconds of a verification as a function of its rows, of all sequences together
    pymtp_cost_curve verify{pymtp_tuning::ROWS};
    // Number of rows of the last verification. Other numbers of rows are compared with it, because its timing is the
    // newest.
    int last_rows = 1;
};
