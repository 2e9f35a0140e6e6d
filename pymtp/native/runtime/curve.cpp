#include "curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

// variance of the logarithm of a time of which nothing is known: anything from microseconds to hours
static constexpr double ANY = 100.0;

pymtp_curve::pymtp_curve(const pymtp_curve_prior & prior) : mean{prior.slope, 0.0, 0.0}, wander(prior.wander) {
    make_room(8);
    of(SLOPE, SLOPE)   = prior.slope_spread * prior.slope_spread;
    of(GROWTH, GROWTH) = GROWTH_SPREAD * GROWTH_SPREAD;
    of(ONE, ONE)       = ANY;
}

void pymtp_curve::make_room(size_t n) {
    std::vector<double> wider(n * n, 0.0);
    for (size_t i = 0; i < stride; ++i) {
        std::copy_n(&covariance[i * stride], stride, &wider[i * n]);
    }
    covariance = std::move(wider);
    stride     = n;
}

// Goes on to the count x. What a further count takes is what the one before it takes, a step along the slope, and a step
// of the motion.
void pymtp_curve::reach(int x) {
    for (int n = (int) mean.size() - ONE + 1; n <= x; ++n) {
        const size_t last   = mean.size();
        const size_t before = last - 1;
        const double step   = std::log((double) n / (n - 1));
        if (last == stride) {
            make_room(2 * stride);
        }
        mean.push_back(mean[before] + step * mean[SLOPE]);
        for (size_t i = 0; i < last; ++i) {
            of(i, last) = of(last, i) = of(before, i) + step * of(SLOPE, i);
        }
        of(last, last) = of(before, last) + step * of(SLOPE, last) + step * wander;
    }
}

// What attention adds at a growth of 1, after so many rows and tokens, in times of one.
static double attention(int x, int n_past) {
    return (double) x * n_past / CONTEXT;
}

double pymtp_curve::motion(int x) const {
    const int last = (int) mean.size() - ONE;
    return x <= last ? mean[ONE + x - 1] : mean.back() + std::log((double) x / last) * mean[SLOPE];
}

double pymtp_curve::at(int x, int n_past) const {
    if (!known()) {
        return std::numeric_limits<double>::infinity();
    }
    return std::exp(motion(x)) + std::max(0.0, mean[GROWTH]) * std::exp(mean[ONE]) * attention(x, n_past);
}

void pymtp_curve::learn(int x, int n_past, double seconds, double noise) {
    reach(x);
    const bool   first  = of(ONE, ONE) > ANY / 2; // nothing is known yet
    const double own    = std::exp(motion(x));
    const double added  = std::exp(mean[ONE]) * attention(x, n_past);
    const double growth = std::max(0.0, mean[GROWTH]);
    const double all    = own + growth * added;

    // by how much parts of the state move the logarithm of the whole; where nothing is known, the whole is the count's own
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
            gain[i] += p.moves * of(p.i, i);
        }
        for (size_t i = ONE; i < n && p.i >= ONE; ++i) {
            gain[i] += p.moves * pace;
        }
    }
    double spread = noise * noise;
    for (const part & p : parts) {
        spread += p.moves * gain[p.i];
    }
    // a busy machine only adds time, up to ten times as much
    const double error = std::log(seconds / all);
    const double heard = first ? error : std::min(CLIP * std::sqrt(spread), error);
    for (size_t i = 0; i < n; ++i) {
        mean[i] += gain[i] * heard / spread;
        const double share = gain[i] / spread;
        double * row = &of(i, 0);
        for (size_t j = 0; j < n; ++j) {
            row[j] -= share * gain[j];
        }
    }
}

void pymtp_curve::take(int x, int n_past, double seconds, double noise) {
    learn(x, n_past, seconds, noise);
    times.resize(std::max<size_t>(times.size(), x + 1), 0);
    times[x]++;
}

void pymtp_curve::begin(int x, double seconds) {
    take(x, 0, seconds, FIRST_NOISE);
}

void pymtp_curve::guess(int x, double seconds, double noise) {
    learn(x, 0, seconds, noise);
}

bool pymtp_curve::observe(int x, int n_past, double seconds, double expected, int run) {
    if (!(seconds > 0.0 && std::isfinite(seconds))) {
        return false; // the clock stood still, or was set
    }
    reach(x);
    pace += PACE_DRIFT * PACE_DRIFT;
    for (size_t i = ONE + 1; i < mean.size(); ++i) {
        of(i, i) += OWN_DRIFT * OWN_DRIFT;
    }
    if (!known() && std::isfinite(expected)) {
        learn(x, n_past, expected, GUESS_NOISE); // or a first timing that a busy machine spoilt would be all there is
    }
    if (run == 0 && known()) {
        if (seen(x)) {
            cold += COLD_GAIN * (std::min(seconds - expected, expected) - cold);
        }
        if (seconds > CHEAPER * expected) {
            return true;
        }
    }
    take(x, n_past, seconds, run < WARM ? COLD_NOISE : NOISE);
    return true;
}

double pymtp_curve::doubt(int x, int y) {
    reach(std::max(x, y));
    const int i = ONE + x - 1, j = ONE + y - 1;
    return std::sqrt(std::max(0.0, of(i, i) + of(j, j) - 2 * of(i, j))); // both have the pace
}
