// Estimates the time of an operation as a function of a count (of the rows of a verification, or of the steps of a
// chain), learnt from timings of a few counts.
#pragma once

#include "tuning.h"

#include <cstddef>
#include <vector>

// A Kalman filter (Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960). Its state holds for
// each count the logarithm of the seconds that the operation takes with that count. Its covariance says how well the
// time of each count is known relative to the time of each other count. The pace of the machine, which all counts
// share, drifts quickly; the part that belongs to a single count drifts slowly. So a timing of a well-known count
// corrects mainly the pace, and a timing of a little-known count corrects mainly the estimate for that count.
//
// Attention makes an operation with count n after n_past tokens take longer by growth * (seconds of count 1) * n *
// n_past / CONTEXT.
class pymtp_cost_curve {
public:
    explicit pymtp_cost_curve(const pymtp_cost_prior & prior);

    // Records the measured seconds of an operation with count x (its number of rows or drafts) after n_past tokens.
    // Returns false, and ignores the timing, if the seconds are not positive and finite. expected: the seconds that
    // were estimated before the operation; for the first timing a guess, or infinity if there is no guess.
    // repeats: number of rounds with the same counts directly before this one. In the first round after a change
    // (repeats = 0), caches are cold and a graph may have been built. That timing measures the cost of a change of
    // count; it changes the estimate for x only if it is clearly lower than expected.
    bool observe(int x, int n_past, double seconds, double expected, int repeats);

    // Records the seconds of an operation with count x that was timed before the first round.
    void seed(int x, double seconds);

    // Records a guess of the seconds of an operation with count x, derived from the times of other counts.
    // noise: standard deviation of the guess's logarithm
    void seed_guess(int x, double seconds, double noise);

    // Returns the estimated seconds of an operation with count x after n_past tokens; infinity before the first timing.
    double seconds_at(int x, int n_past) const;

    // Returns the standard deviation of log(seconds of count x / seconds of count y): how well the time of x is known
    // relative to the time of y.
    double uncertainty(int x, int y);

    // returns the extra seconds of a round whose count differs from that of the round before
    double change_seconds() const { return cold > 0 ? cold : 0; }

    bool known() const { return max_count() > 0; }
    int  max_count() const { return (int) timings_by_count.size() - 1; } // the largest count that was timed
    int  n_timings(int x) const { return x < (int) timings_by_count.size() ? timings_by_count[x] : 0; }

private:
    void   extend_to(int x);
    void   grow(size_t n);
    double log_seconds(int x) const;
    void   update(int x, int n_past, double seconds, double noise);
    void   add_timing(int x, int n_past, double seconds, double noise);

    // Indices in the filter's state: of the slope, of the growth, and of the logarithm of the seconds of count 1. Those
    // of the counts 2, 3, ... follow.
    static constexpr int SLOPE = 0, GROWTH = 1, ONE = 2;

    double & cov(size_t i, size_t j) { return covariance[i * stride + j]; }

    std::vector<double> mean;
    std::vector<double> covariance; // a stride x stride matrix, to which `pace` must be added
    size_t              stride = 0;
    // variance of the machine's pace: a part of the covariance of every pair of counts
    double              pace   = 0.0;

    double           wander;
    double           cold = 0.0;
    std::vector<int> timings_by_count{0}; // timings_by_count[n]: number of timings of the operation with count n
};
