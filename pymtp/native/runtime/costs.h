// Learns how long drafting and verifying take on this machine with this model, from timings of the rounds.
#pragma once

#include <map>
#include <vector>

// The seconds of an operation by a count: a table of the counts that were timed, interpolated in between.
class pymtp_cost_table {
public:
    struct entry {
        double seconds; // at a pace of 1
        double timings; // number of timings that the seconds stand for; 0 if only the first run was timed
    };

    // Returns the entry of a count. If it was never timed, the seconds are interpolated or extrapolated from other
    // counts, and timings is 0. The table must not be empty.
    entry at(int count) const;

    // Records a timing. Returns the part of its error (as a logarithm) that does not correct the entry.
    double observe(int count, double seconds, double pace);

    // Records the fastest of several timings that were made before the first round.
    void seed(int count, double seconds);

    // Lowers the weight of all timings, because time has passed.
    void age();

    bool empty() const { return entries.empty(); }
    bool has(int count) const { return entries.count(count) > 0; }
    int  max_count() const { return entries.empty() ? 0 : entries.rbegin()->first; }

private:
    std::map<int, entry> entries;
};

// Estimates the seconds of rounds with any number of sequences and drafts, for one model in one context on one machine.
// The estimates are kept from one request to the next.
//
// A verification of n drafts has 1 + n rows for each sequence; its time depends on the number of rows, not on the
// sequences that the rows belong to. The time of a chain of drafts depends on the number of sequences and of steps.
//
// The pace of the machine is a factor of all seconds: other programs, and texts that grow longer, change the times of
// all counts together. So a timing of a well-known count changes mainly the pace, and a timing of a little-known count
// mainly its entry. The pace returns to 1 within some ten rounds, while the entries take over what lasts.
struct pymtp_costs {
    // Records a round of n_seqs sequences with a chain of `drafted` steps, and a verification of 1 + verified rows of
    // each sequence. Ignores seconds that are not positive or not finite.
    void observe(int n_seqs, int drafted, double draft_seconds, int verified, double verify_seconds);

    // Records a round that was timed before the first real round.
    void seed(int n_seqs, int drafted, double draft_seconds, double verify_seconds);

    // returns whether a round was timed often enough that other depths can be compared with it
    bool known() const { return is_known; }

    // return the estimated seconds of a chain of `drafted` steps, and of a verification of `verified` drafts
    double draft_seconds(int n_seqs, int drafted) const;
    double verify_seconds(int n_seqs, int verified) const;

    // returns the estimated seconds of one draft after a round without drafts, when the head must first catch up
    double peek_seconds(int n_seqs) const;

    // returns the share by which a verification may take less time than estimated: high if it was timed seldom or long
    // ago
    double doubt(int n_seqs, int verified) const;

    // Estimates the seconds of a round at each depth from 0 to max_depth. More rows or steps never take less time:
    // where a table says so, a busy machine has disturbed the timings of fewer.
    std::vector<double> rounds(int n_seqs, int max_depth) const;

    // returns whether no verification had as many rows before, so that memory must be allocated
    bool is_cold(int n_seqs, int verified) const { return n_seqs * (1 + verified) > verify.max_count(); }

private:
    pymtp_cost_table                verify; // by the number of rows
    std::map<int, pymtp_cost_table> chains; // by the number of sequences: a table by the number of steps
    pymtp_cost_table                peeks;  // by the number of sequences
    double                          pace = 1.0;
    int                             last_drafted = 0;
    bool                            is_known = false;
};
