#include "guess_rates.h"

#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>

using namespace pymtp_tuning;

static constexpr int N_SPLIT = std::size(DISAGREEMENT_RATES); // kinds of agreement in which the places differ

static double log_odds(double share) {
    return std::log(share / (1 - share));
}

static double share_of(double log_odds) {
    return 1 / (1 + std::exp(-log_odds));
}

pymtp_guess_rates::pymtp_guess_rates() {
    static_assert(std::size(LENGTHS) + 1 == N_LENGTHS && std::size(LENGTH_RATES) == N_LENGTHS, "a rate for each bin");
    static_assert(N_SPLIT + std::size(AGREEMENT_ODDS) == N_AGREEMENTS, "a rate for each kind of agreement");
    for (int i = 0; i < N_LENGTHS; ++i) {
        for (int k = 0; k < N_AGREEMENTS; ++k) {
            const double rate = k < N_SPLIT ? DISAGREEMENT_RATES[k]
                                            : share_of(log_odds(LENGTH_RATES[i]) + AGREEMENT_ODDS[k - N_SPLIT]);
            records[i][k] = {GUESS_WEIGHT, GUESS_WEIGHT * rate};
        }
    }
}

// Returns the kind of agreement: less than half of the places, half or more, the only place, all of a few, all of many.
static int agreement(const pymtp_guess & guess) {
    if (guess.votes < guess.of) {
        return 2 * guess.votes < guess.of ? 0 : 1;
    }
    return guess.of == 1 ? 2 : guess.of < MANY_PLACES ? 3 : 4;
}

static int length_bin(const pymtp_guess & guess) {
    return std::upper_bound(std::begin(LENGTHS), std::end(LENGTHS), guess.length) - std::begin(LENGTHS);
}

pymtp_guess_rates::record & pymtp_guess_rates::at(const pymtp_guess & guess) {
    return records[length_bin(guess)][agreement(guess)];
}

const pymtp_guess_rates::record & pymtp_guess_rates::at(const pymtp_guess & guess) const {
    return records[length_bin(guess)][agreement(guess)];
}

double pymtp_guess_rates::rate(const pymtp_guess & guess, double odds) const {
    const record & r = at(guess);
    return std::min(MOST_RATE, share_of(log_odds(r.hits / r.trials) + odds));
}

void pymtp_guess_rates::observe(const pymtp_guess & guess, bool right, double & odds) {
    odds += ODDS_GAIN * (right - rate(guess, odds));
    odds  = std::clamp(odds, -MOST_ODDS, MOST_ODDS);
    record & r = at(guess);
    r.trials = GUESS_DECAY * r.trials + 1;
    r.hits   = GUESS_DECAY * r.hits + right;
    // neither 0 nor 1, whose odds are not finite
    r.hits   = std::clamp(r.hits, 0.01 * r.trials, 0.99 * r.trials);
}
