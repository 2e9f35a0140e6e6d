// Learns how long drafting and verifying take on this machine with this model, from timings of the rounds.
#pragma once

#include "tuning.h"

#include <map>
#include <vector>

// The seconds of an operation by a count: a table of the counts that were timed, interpolated in between.
class pymtp_cost_table {
public:
    struct entry {
        double seconds; // at a pace of 1
        double timings; // number of timings that the seconds stand for; 0 if only the first run was timed
    };

    // Returns the entry of a count. If it was never timed, the entry is interpolated or extrapolated from other counts;
    // an extrapolated one has no timings. The table must not be empty.
    entry at(int count) const;

    // Records a timing. Returns the part of its error (as a logarithm) that does not correct the entry.
    double observe(int count, double seconds, double pace);

    // Records the fastest of several timings that were made before the first round.
    void seed(int count, double seconds);

    // Sets the seconds of a count that was never timed; they count less than any timing.
    void put(int count, double seconds);

    // Lowers the weight of all timings, because time has passed.
    void age();

    // Multiplies all seconds, and lowers the weight of each entry to that of one timing.
    void rescale(double factor);

    bool empty() const { return entries.empty(); }
    bool has(int count) const { return entries.count(count) > 0; }
    int  max_count() const { return entries.empty() ? 0 : entries.rbegin()->first; }

private:
    std::map<int, entry> entries;
};

// The extra seconds of the first of several equal operations in a row: a graph is built, and caches are cold.
class pymtp_first_extra {
public:
    double seconds() const { return mean; }

    // Records the time of a first operation, beyond that of later ones. Limits it to a few times the usual extra.
    // usual: the seconds of a later operation
    void observe(double extra, double usual);

    void seed(double extra);

private:
    double mean    = 0.0;
    double timings = 0.0;
};

// Estimates the seconds of rounds with any number of sequences and drafts, for one model in one context on one machine.
// The estimates are kept from one request to the next.
//
// A verification of n drafts has 1 + n rows for each sequence; its time depends on the number of rows, not on the
// sequences that the rows belong to. The time of a chain of drafts depends on the number of sequences and of steps.
// The first verification with a number of rows, and the first chain of a length, take longer than the same again.
// After rounds without drafts, the head must first catch up with the target.
//
// The pace of the machine is a factor of all seconds: other programs, and texts that grow longer, change the times of
// all counts together. So a timing of a well-known count changes mainly the pace, and a timing of a little-known count
// mainly its entry. The pace returns to 1 within some ten rounds, while the entries take over what lasts.
struct pymtp_costs {
    // The seconds of the drafts and of the verification of a round, and how much longer they take in the first of
    // several such rounds in a row.
    struct round_seconds {
        double draft, verify, draft_first, verify_first;
    };

    // Records a round of n_seqs sequences with a chain of `drafted` steps, and a verification of 1 + verified rows of
    // each sequence. Ignores seconds that are not positive or not finite.
    void observe(int n_seqs, int drafted, double draft_seconds, int verified, double verify_seconds);

    // Records a verification of n_seqs sequences with `verified` drafts of each, some of them from text.
    void observe_verify(int n_seqs, int verified, double verify_seconds);

    // Records rounds with `drafted` drafts of each sequence that were timed before the first real round.
    void seed(int n_seqs, int drafted, const round_seconds & timed);

    // The number of threads has changed, so rounds take another time from now on: the next timings correct all
    // estimates by the same factor, and later ones replace them.
    void doubt() { n_doubted = (int) pymtp_tuning::KNOWN; }

    // returns whether a round was timed often enough that other depths can be compared with it
    bool known() const { return is_known; }

    // return the estimated seconds of a chain of `drafted` steps, and of a verification of `verified` drafts
    double draft_seconds(int n_seqs, int drafted) const;
    double verify_seconds(int n_seqs, int verified) const;

    // Returns the extra seconds of a round after a round of another shape. The arguments are the number of drafts made
    // and verified.
    double change_seconds(int n_seqs, int drafted, int verified) const;

    // returns the extra seconds of a verification after one with another number of rows
    double verify_change_seconds() const { return pace * verify_change.seconds(); }

    // returns whether a verification has as many rows as the last one
    bool repeats(int n_seqs, int verified) const { return n_seqs * (1 + verified) == last_seqs * (1 + last_verified); }

    // returns the estimated seconds of one draft after a round without drafts
    double peek_seconds(int n_seqs) const { return draft_seconds(n_seqs, 1) + pace * catch_up.seconds(); }

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
    pymtp_first_extra               verify_change, draft_change, catch_up;
    double                          pace = 1.0;
    bool                            is_known   = false;
    int                             n_doubted  = 0; // timings that may still correct all estimates, after doubt()
    int last_seqs = 0, last_drafted = 0, last_verified = 0; // of the round before
};
