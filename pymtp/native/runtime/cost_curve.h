// Seconds as a function of a count (rows of a verification, steps of a chain), learnt from timings of a few counts.
#pragma once

#include "tuning.h"

#include <cstddef>
#include <vector>

// A Kalman filter (Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960) over the logarithm of
// each count's seconds. Its covariance says how well each count is known relative to each other one. The pace of the
// machine, which all counts share, drifts quickly; each count's own part drifts slowly. So a timing of a well-known
// count corrects the pace, and a timing of another count corrects that count.
//
// Attention adds growth * (seconds of one) * n * n_past / CONTEXT to a count of n after n_past tokens.
class pymtp_cost_curve {
public:
    explicit pymtp_cost_curve(const pymtp_cost_prior & prior);

    // Records a timing of the count x after n_past tokens. Returns false for an impossible time, which is ignored.
    // expected: the estimate before; for the first timing a guess, or infinity when there is none
    // repeats: how many rounds of the same kind came right before. In the first ones caches are cold, and a graph may
    // have been built: such a timing tells the cost of a change, and counts for x only when it is clearly cheaper than
    // expected.
    bool observe(int x, int n_past, double seconds, double expected, int repeats);

    // Records a timing of the count x before the first round.
    void seed(int x, double seconds);

    // Records a guess of the count x that was derived from other counts. noise: standard deviation of its logarithm
    void seed_guess(int x, double seconds, double noise);

    // Estimates the seconds of the count x after n_past tokens. Infinite before the first timing.
    double seconds_at(int x, int n_past) const;

    // Returns how well x is known relative to y: the standard deviation of the logarithm of the ratio of their times.
    double uncertainty(int x, int y);

    // returns the extra seconds of the first round of another count
    double change_seconds() const { return cold > 0 ? cold : 0; }

    bool known() const { return max_count() > 0; }
    int  max_count() const { return (int) timings_by_count.size() - 1; } // the largest timed count
    int  n_timings(int x) const { return x < (int) timings_by_count.size() ? timings_by_count[x] : 0; }

private:
    void   extend_to(int x);
    void   grow(size_t n);
    double log_seconds(int x) const;
    void   update(int x, int n_past, double seconds, double noise);
    void   add_timing(int x, int n_past, double seconds, double noise);

    // the state: the slope, the growth, and from ONE on the logarithms of the seconds of the counts 1, 2, ...
    static constexpr int SLOPE = 0, GROWTH = 1, ONE = 2;

    double & cov(size_t i, size_t j) { return covariance[i * stride + j]; }

    std::vector<double> mean;
    std::vector<double> covariance; // a stride x stride matrix, without `pace`
    size_t              stride = 0;
    double              pace   = 0.0; // variance that all counts share: to be added to each pair of them

    double           wander;
    double           cold = 0.0;
    std::vector<int> timings_by_count{0}; // how often each count was timed
};
