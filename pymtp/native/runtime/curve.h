// Seconds over a count, of rows of a verification or of steps of a chain: learnt from timings of a few counts.
#pragma once

#include "tuning.h"

#include <cstddef>
#include <vector>

// A Kalman filter (Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960) over the logarithm of each
// count's seconds. It knows how sure it is of each count against each other one. What all counts share, the machine's
// pace, drifts quickly; what each count has of its own drifts slowly. So a timing of one count tells of the pace where
// that count was known, and of the count where it was not.
//
// Attention adds to a count of n after n_past tokens: growth * (seconds of one) * n * n_past / CONTEXT.
class pymtp_curve {
public:
    explicit pymtp_curve(const pymtp_curve_prior & prior);

    // One timing of the count x after n_past tokens. False for a time that nothing takes: it tells nothing.
    // expected: what was thought before: of the first, a guess, infinite where there is none.
    // run: rounds of the same kind right before. At first caches are cold, and there may have been a graph to build: then
    // the timing tells what a change takes, and of the count only where it shows it to be cheaper.
    bool observe(int x, int n_past, double seconds, double expected, int run);

    // What the count x takes, measured before the first round.
    void begin(int x, double seconds);

    // What the count x is thought to take, by other counts; noise: the standard deviation of its logarithm.
    void guess(int x, double seconds, double noise);

    // The estimate after n_past tokens. Infinite where nothing was timed.
    double at(int x, int n_past) const;

    // How well x is known against y: the standard deviation of the logarithm of what one takes in times of the other.
    double doubt(int x, int y);

    // what the first of another count takes on top
    double change() const { return cold > 0 ? cold : 0; }

    bool known() const { return most() > 0; }
    int  most()  const { return (int) times.size() - 1; } // the largest count that was timed
    int  seen(int x) const { return x < (int) times.size() ? times[x] : 0; }

private:
    void   reach(int x);
    void   make_room(size_t n);
    double motion(int x) const;
    void   learn(int x, int n_past, double seconds, double noise);
    void   take(int x, int n_past, double seconds, double noise);

    // of the state: the slope, the growth, and from ONE on the logarithms of the seconds of 1, 2, ...
    static constexpr int SLOPE = 0, GROWTH = 1, ONE = 2;

    double & of(size_t i, size_t j) { return covariance[i * stride + j]; }

    std::vector<double> mean;
    std::vector<double> covariance;   // stride by stride, without `pace`
    size_t              stride = 0;
    double              pace   = 0.0; // variance that all counts share: added to each pair of them

    double           wander;
    double           cold = 0.0;
    std::vector<int> times{0}; // how often each count was timed
};
