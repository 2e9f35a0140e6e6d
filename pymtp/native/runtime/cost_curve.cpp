#include "cost_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

// Variance of the logarithm of the seconds before the first timing. It is so large that anything from microseconds to
// hours is plausible.
static constexpr double ANY = 100.0;

pymtp_cost_curve::pymtp_cost_curve(const pymtp_cost_prior & prior) : mean{prior.slope, 0.0, 0.0}, wander(prior.wander) {
    grow(8);
    cov(SLOPE, SLOPE)   = prior.slope_spread * prior.slope_spread;
    cov(GROWTH, GROWTH) = GROWTH_SPREAD * GROWTH_SPREAD;
    cov(ONE, ONE)       = ANY;
}

void pymtp_cost_curve::grow(size_t n) {
    std::vector<double> wider(n * n, 0.0);
    for (size_t i = 0; i < stride; ++i) {
        std::copy_n(&covariance[i * stride], stride, &wider[i * n]);
    }
    covariance = std::move(wider);
    stride     = n;
}

// Extends the state up to count x. The estimate of each new count is that of the count before it, plus a step along the
// slope; its variance also grows by a step of the random walk.
void pymtp_cost_curve::extend_to(int x) {
    for (int n = (int) mean.size() - ONE + 1; n <= x; ++n) {
        const size_t last   = mean.size();
        const size_t before = last - 1;
        const double step   = std::log((double) n / (n - 1));
        if (last == stride) {
            grow(2 * stride);
        }
        mean.push_back(mean[before] + step * mean[SLOPE]);
        for (size_t i = 0; i < last; ++i) {
            cov(i, last) = cov(last, i) = cov(before, i) + step * cov(SLOPE, i);
        }
        cov(last, last) = cov(before, last) + step * cov(SLOPE, last) + step * wander;
    }
}

// Returns the time that attention adds if the growth is 1, as a multiple of the time of count 1.
static double attention(int x, int n_past) {
    return (double) x * n_past / CONTEXT;
}

double pymtp_cost_curve::log_seconds(int x) const {
    const int last = (int) mean.size() - ONE;
    return x <= last ? mean[ONE + x - 1] : mean.back() + std::log((double) x / last) * mean[SLOPE];
}

double pymtp_cost_curve::seconds_at(int x, int n_past) const {
    if (!known()) {
        return std::numeric_limits<double>::infinity();
    }
    return std::exp(log_seconds(x)) + std::max(0.0, mean[GROWTH]) * std::exp(mean[ONE]) * attention(x, n_past);
}

void pymtp_cost_curve::update(int x, int n_past, double seconds, double noise) {
    extend_to(x);
    const bool   first  = cov(ONE, ONE) > ANY / 2; // this is the first timing
    const double own    = std::exp(log_seconds(x));
    const double added  = std::exp(mean[ONE]) * attention(x, n_past);
    const double growth = std::max(0.0, mean[GROWTH]);
    const double all    = own + growth * added;

    // Derivatives of log(total seconds) with respect to three elements of the state. For the first timing, the total is
    // taken to be the time of the count alone, without attention.
    struct part {
        size_t i;
        double moves;
    };
    const part parts[] = {
        {(size_t) ONE + x - 1, first ? 1.0 : own / all},
        {ONE,                  first ? 0.0 : growth * added / all},
        {GROWTH,               first ? 0.0 : added / all},
    };
    const size_t n = mean.size();
    std::vector<double> gain(n, 0.0);
    for (const part & p : parts) {
        for (size_t i = 0; i < n; ++i) {
            gain[i] += p.moves * cov(p.i, i);
        }
        for (size_t i = ONE; i < n && p.i >= ONE; ++i) {
            gain[i] += p.moves * pace;
        }
    }
    double spread = noise * noise;
    for (const part & p : parts) {
        spread += p.moves * gain[p.i];
    }
    // Errors are clipped upwards only: a busy machine can make a timing up to ten times too long, but never too short.
    const double error = std::log(seconds / all);
    const double clipped = first ? error : std::min(CLIP * std::sqrt(spread), error);
    for (size_t i = 0; i < n; ++i) {
        mean[i] += gain[i] * clipped / spread;
        const double share = gain[i] / spread;
        double * row = &cov(i, 0);
        for (size_t j = 0; j < n; ++j) {
            row[j] -= share * gain[j];
        }
    }
}

void pymtp_cost_curve::add_timing(int x, int n_past, double seconds, double noise) {
    update(x, n_past, seconds, noise);
    timings_by_count.resize(std::max<size_t>(timings_by_count.size(), x + 1), 0);
    timings_by_count[x]++;
}

void pymtp_cost_curve::seed(int x, double seconds) {
    add_timing(x, 0, seconds, FIRST_NOISE);
}

void pymtp_cost_curve::seed_guess(int x, double seconds, double noise) {
    update(x, 0, seconds, noise);
}

bool pymtp_cost_curve::observe(int x, int n_past, double seconds, double expected, int repeats) {
    if (!(seconds > 0.0 && std::isfinite(seconds))) {
        return false; // the clock did not advance, or was adjusted
    }
    extend_to(x);
    pace += PACE_DRIFT * PACE_DRIFT;
    for (size_t i = ONE + 1; i < mean.size(); ++i) {
        cov(i, i) += OWN_DRIFT * OWN_DRIFT;
    }
    if (!known() && std::isfinite(expected)) {
        // Records the guess as well; otherwise a first timing on a busy machine would be the only evidence.
        update(x, n_past, expected, GUESS_NOISE);
    }
    if (repeats == 0 && known()) {
        if (n_timings(x)) {
            cold += COLD_GAIN * (std::min(seconds - expected, expected) - cold);
        }
        if (seconds > CHEAPER * expected) {
            return true;
        }
    }
    add_timing(x, n_past, seconds, repeats < WARM ? COLD_NOISE : NOISE);
    return true;
}

double pymtp_cost_curve::uncertainty(int x, int y) {
    extend_to(std::max(x, y));
    const int i = ONE + x - 1, j = ONE + y - 1;
    // the pace that all counts share cancels out
    return std::sqrt(std::max(0.0, cov(i, i) + cov(j, j) - 2 * cov(i, j)));
}
