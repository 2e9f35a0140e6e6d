// What rounds of several sequences cost on this machine, for one model: learnt from the rounds themselves.
#pragma once

#include "costs.h"

#include <vector>

// Seconds of rounds of any number of sequences. A step of a chain has a row for each sequence, a verification has 1 + n
// rows for each: what a launch takes goes by its rows, whatever sequences they are of. So rounds of eight sequences tell
// of rounds of seven, too. Outlives the requests.
struct pymtp_batch_costs {
    // n_seqs sequences of n_past tokens each: chains of n steps, and a verification of so many rows of each.
    // cold: no launch had as many rows before, so its memory is new: it tells only where it shows them to be cheaper.
    void observe(int n_seqs, int n_past, int n, double draft_seconds, int rows, double verify_seconds, bool cold);

    // Begins with what is known of one sequence by itself.
    void begin(const pymtp_costs & single);

    // A round that was timed before the first.
    void begin(int n_seqs, int n, double draft_seconds, double verify_seconds);

    bool known() const { return verify.known(); }

    // The estimates for rounds at depths 0 to `top`, and the cheapest that they may turn out.
    void rounds(int n_seqs, int top, int n_past, std::vector<double> & likely, std::vector<double> & least);

    // the estimate for one step of a chain of so many sequences
    double step_seconds(int n_seqs, int n_past) const;

private:
    pymtp_curve step{pymtp_tuning::ROWS};   // over sequences
    pymtp_curve verify{pymtp_tuning::ROWS}; // over rows in all
    int last_rows = 1; // of the last verification: what is timed now is what others are compared with
};
