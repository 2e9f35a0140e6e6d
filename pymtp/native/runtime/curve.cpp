#include "curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

// variance of the logarithm of a time of which nothing is known: anything from microseconds to hours
static constexpr double ANY = 100.0;

pymtp_curve::pymtp_curve(const pymtp_curve_prior & prior) : mean{prior.slope, 0.0, 0.0}, wander(prior.wander) {
    covariance = {
        {prior.slope_spread * prior.slope_spread, 0.0, 0.0},
        {0.0, GROWTH_SPREAD * GROWTH_SPREAD, 0.0},
        {0.0, 0.0, ANY},
    };
}

// Goes on to the count x. What a further count takes is what the one before it takes, a step along the slope, and a step
// of the motion.
void pymtp_curve::reach(int x) {
    for (int n = (int) mean.size() - ONE + 1; n <= x; ++n) {
        const size_t before = mean.size() - 1;
        const double step   = std::log((double) n / (n - 1));
        mean.push_back(mean[before] + step * mean[SLOPE]);

        std::vector<double> with(mean.size());
        for (size_t i = 0; i <= before; ++i) {
            with[i] = covariance[i][before] + step * covariance[i][SLOPE];
            covariance[i].push_back(with[i]);
        }
        with.back() = with[before] + step * with[SLOPE] + step * wander;
        covariance.push_back(std::move(with));
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
    const bool   first  = covariance[ONE][ONE] > ANY / 2; // nothing is known yet
    const double own    = std::exp(motion(x));
    const double added  = std::exp(mean[ONE]) * attention(x, n_past);
    const double growth = std::max(0.0, mean[GROWTH]);
    const double all    = own + growth * added;

    // by how much each part of the state moves the logarithm of the whole; where nothing is known, the whole is the count's own
    std::vector<double> moves(mean.size(), 0.0);
    moves[ONE + x - 1] += first ? 1.0 : own / all;
    if (!first) {
        moves[ONE]    += growth * added / all;
        moves[GROWTH] += added / all;
    }
    std::vector<double> gain(mean.size(), 0.0);
    double spread = noise * noise;
    for (size_t i = 0; i < mean.size(); ++i) {
        for (size_t j = 0; j < mean.size(); ++j) {
            gain[i] += covariance[i][j] * moves[j];
        }
        spread += moves[i] * gain[i];
    }
    // a busy machine only adds time, up to ten times as much
    const double error = std::log(seconds / all);
    const double heard = first ? error : std::min(CLIP * std::sqrt(spread), error);
    for (size_t i = 0; i < mean.size(); ++i) {
        mean[i] += gain[i] * heard / spread;
        for (size_t j = 0; j < mean.size(); ++j) {
            covariance[i][j] -= gain[i] * gain[j] / spread;
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

void pymtp_curve::observe(int x, int n_past, double seconds, double expected, int run) {
    reach(x);
    for (size_t i = ONE; i < mean.size(); ++i) {
        for (size_t j = ONE; j < mean.size(); ++j) {
            covariance[i][j] += PACE_DRIFT * PACE_DRIFT;
        }
        covariance[i][i] += i == ONE ? 0.0 : OWN_DRIFT * OWN_DRIFT;
    }
    if (!known() && std::isfinite(expected)) {
        learn(x, n_past, expected, GUESS_NOISE); // or a first timing that a busy machine spoilt would be all there is
    }
    if (run == 0 && known()) {
        if (seen(x)) {
            cold += COLD_GAIN * (std::min(seconds - expected, expected) - cold);
        }
        if (seconds > CHEAPER * expected) {
            return;
        }
    }
    take(x, n_past, seconds, run < WARM ? COLD_NOISE : NOISE);
}

double pymtp_curve::doubt(int x, int y) {
    reach(std::max(x, y));
    const int i = ONE + x - 1, j = ONE + y - 1;
    return std::sqrt(std::max(0.0, covariance[i][i] + covariance[j][j] - 2 * covariance[i][j]));
}
