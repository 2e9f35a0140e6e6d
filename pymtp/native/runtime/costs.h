// What drafting and verifying cost on this machine, for this model: learnt from the rounds themselves.
#pragma once

#include "tuning.h"

#include <map>
#include <vector>

// Seconds over a count, of rows or of steps, after a context of some length.
//
// pace * own[count] + growth * own[least] * count * n_past / CONTEXT: each count has its own cost, for some kernels take
// four rows faster than three; attention adds to it by rows and by tokens before them. The machine's pace and growth,
// which all counts share, follow the timings by normalized least mean squares (Nagumo and Noda 1967).
class pymtp_curve {
public:
    // share: what each further one adds to the cost of the one count that was timed, while it is the only one
    explicit pymtp_curve(double share) : share(share) {}

    // One timing of the count x after n_past tokens.
    // expected: what was thought before, infinite where nothing was.
    // run: rounds of the same kind right before. At first caches are cold, and there may have been a graph to build: then
    // the timing tells what a change takes, and of the count only where it shows it to be far cheaper.
    void observe(int x, int n_past, double seconds, double expected, int run);

    // What the count x takes, measured before the first round: worth `times` timings. Nothing may have been observed of it.
    void begin(int x, double seconds, int times) { counts[x] = {seconds, times}; }

    // how many timings of x itself are missing, or were too long ago, for it to be relied on
    int missing(int x, int least) const;

    // whether counts below and above x were timed
    bool between(int x) const { return known() && counts.begin()->first < x && x < most(); }

    // The estimate after n_past tokens. The own cost of a count that was not timed is on the line between its neighbours;
    // beyond the last, on the line from the first to the last. Infinite where nothing was timed.
    double at(int x, int n_past) const;

    // what the first of another count takes on top
    double change() const { return cold > 0 ? cold : 0; }

    bool known() const { return !counts.empty(); }
    int  most()  const { return counts.rbegin()->first; }

private:
    struct count {
        double own;
        int    times;
    };
    double part(int x, int n_past) const;

    double share;
    double pace   = 1.0;
    double growth = 0.0;
    double cold   = 0.0;
    int    n      = 0;
    std::map<int, count> counts; // those that were timed
};

// Seconds of rounds, for one model in one context on one machine. Outlives the requests.
struct pymtp_costs {
    // A chain of `drafted` steps and a verification of so many rows, after n_past tokens. run: rounds of as many right before.
    void observe(int n_past, int drafted, double draft_seconds, int rows, double verify_seconds, int run);

    // What a verification of so many rows and a chain of n steps take, measured before the first round.
    void begin_verify(int rows, double seconds);
    void begin_draft(int n, double seconds);

    // whether plain decoding was timed well enough to compare with
    bool known() const;

    // how many timings of rounds of n drafts are missing for them to be relied on
    int missing(int n) const;

    // the most drafts of which a verification was timed
    int deepest() const { return verify.most() - 1; }

    // the estimates for a verification of so many rows and for a chain of n steps, after n_past tokens
    double verify_seconds(int rows, int n_past) const { return verify.at(rows, n_past); }
    double draft_seconds(int n, int n_past) const;

    // what a round takes on top where the one before was of another depth: its drafts, its verification, and both
    double draft_change()  const { return draft.change(); }
    double verify_change() const { return verify.change(); }
    double change()        const { return draft.change() + verify.change(); }

    // The estimates for rounds at depths 0, plain decoding, to `top`, and the cheapest that they may turn out: more rows
    // may cost no more than fewer did, where that was not timed often enough.
    void rounds(int top, int n_past, std::vector<double> & likely, std::vector<double> & least) const;

private:
    pymtp_curve draft{pymtp_tuning::CHAIN_SHARE};
    pymtp_curve verify{pymtp_tuning::ROW_SHARE};
};
