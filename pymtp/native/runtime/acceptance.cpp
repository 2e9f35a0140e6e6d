#include "acceptance.h"

#include "api_guard.h"
#include "pymtp_depth.h"
#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

using namespace pymtp_tuning;

pymtp_acceptance::pymtp_acceptance(const pymtp_acceptance * previous) {
    if (!previous) {
        positions.push_back({{0.0, 0.0}, {FIRST_WEIGHT, FIRST_WEIGHT * FIRST_GUESS}});
        return;
    }
    const std::vector<double> rates = previous->rates(previous->positions.size());
    for (size_t i = 0; i < rates.size(); ++i) {
        const record & before = previous->positions[i].long_run;
        const double   share  = std::min(1.0, CARRY / before.trials);
        positions.push_back({{CARRY_END, CARRY_END * rates[i]}, {share * before.trials, share * before.hits}});
    }
}

void pymtp_acceptance::fade(int tokens) {
    const double share = std::pow(DECAY, tokens);
    for (position & p : positions) {
        p.recent = {share * p.recent.trials, share * p.recent.hits};
    }
}

void pymtp_acceptance::add(size_t i, double hits, double trials) {
    if (i >= positions.size()) {
        positions.resize(i + 1);
    }
    for (record * r : {&positions[i].recent, &positions[i].long_run}) {
        r->hits   += hits;
        r->trials += trials;
    }
}

void pymtp_acceptance::observe(int judged, int correct, const std::vector<double> & unjudged, int tokens) {
    fade(tokens);
    const double share = std::pow(LONG_DECAY, tokens);
    for (position & p : positions) {
        p.long_run = {share * p.long_run.trials, share * p.long_run.hits};
    }
    for (int i = 0; i < std::min(judged, correct + 1); ++i) {
        add(i, i < correct, 1.0);
    }
    double weight = correct == judged;
    for (size_t i = 0; i < unjudged.size(); ++i) {
        add(judged + i, weight * unjudged[i], weight);
        weight *= unjudged[i];
    }
}

std::vector<double> pymtp_acceptance::rates(int n, double imagined) const {
    std::vector<double> rates(n);
    // expected acceptance at the position, in the long run (long_term) and in the present passage (current)
    double long_term = FIRST_GUESS;
    double current   = FIRST_GUESS;
    for (int i = 0; i < n; ++i) {
        const position p = i < (int) positions.size() ? positions[i] : position();

        // The first position needs no guess here: its long-run record was initialised with FIRST_GUESS.
        const double guess_weight = i == 0 ? 0.0 : WEIGHT;
        // The weight is zero when the position's record has faded completely.
        const double weight   = p.long_run.trials + guess_weight + imagined;
        const double long_run = weight > 0.0 ? (p.long_run.hits + guess_weight * long_term + imagined) / weight
                : long_term;
        // When the present passage is worse (or better) than usual at the position before, expect this position to be
        // worse (or better) than usual, too.
        const double passage = std::min(CERTAIN, long_run * (1 - LINK + LINK * current / long_term));
        rates[i] = (p.recent.hits + RECENT * passage + imagined) / (p.recent.trials + RECENT + imagined);

        long_term = FADE * long_run;
        current   = FADE * rates[i];
    }
    return rates;
}

static int find_bin(double confidence) {
    return std::upper_bound(std::begin(BINS), std::end(BINS), confidence) - std::begin(BINS);
}

static constexpr double BIN_HITS   = BIN_WEIGHT * FIRST_GUESS;
static constexpr double BIN_MISSES = BIN_WEIGHT - BIN_HITS;

pymtp_calibration::pymtp_calibration() {
    static_assert(std::size(BINS) + 1 == N_BINS, "one bin more than boundaries");
    std::fill_n(hits, N_BINS, BIN_HITS);
    std::fill_n(misses, N_BINS, BIN_MISSES);
}

void pymtp_calibration::observe(double confidence, bool accepted) {
    const int i = find_bin(confidence);
    hits[i]   += accepted  + (1 - BIN_DECAY) * (BIN_HITS   - hits[i]);
    misses[i] += !accepted + (1 - BIN_DECAY) * (BIN_MISSES - misses[i]);
}

double pymtp_calibration::probability(double confidence, double expected) const {
    const int    i       = find_bin(confidence);
    const double overall = std::accumulate(hits, hits + N_BINS, 0.0) / std::accumulate(misses, misses + N_BINS, 0.0);
    const double odds    = hits[i] / misses[i] * std::sqrt(expected / (1 - expected) / overall);

    return std::min(CERTAIN, 1 - 1 / (1 + odds)); // written this way because it also gives 1 for infinite odds
}

std::vector<double> pymtp_expected_tokens(const std::vector<double> & rates) {
    std::vector<double> tokens = {1.0};
    double all_accepted = 1.0;
    for (double rate : rates) {
        all_accepted *= rate;
        tokens.push_back(tokens.back() + all_accepted);
    }
    return tokens;
}

pymtp_acceptance * pymtp_acceptance_init(const pymtp_acceptance * previous) {
    return pymtp_guarded<pymtp_acceptance *>(nullptr, [&] { return new pymtp_acceptance(previous); });
}

void pymtp_acceptance_free(pymtp_acceptance * acceptance) {
    delete acceptance;
}

void pymtp_acceptance_observe(pymtp_acceptance * acceptance, int32_t judged, int32_t correct, const double * unjudged,
        int32_t n_unjudged, int32_t tokens) {
    pymtp_guarded([&] {
        pymtp_require(judged >= 0 && correct >= 0 && correct <= judged && n_unjudged >= 0,
                "drafts are counted from zero");
        pymtp_require(tokens >= 0, "tokens are counted from zero");
        acceptance->observe(judged, correct, {unjudged, unjudged + n_unjudged}, tokens);
    });
}

void pymtp_acceptance_rates(const pymtp_acceptance * acceptance, int32_t n, double imagined, double * rates) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> computed = acceptance->rates(n, imagined);
        std::copy(computed.begin(), computed.end(), rates);
    });
}

pymtp_calibration * pymtp_calibration_init(void) {
    return pymtp_guarded<pymtp_calibration *>(nullptr, [] { return new pymtp_calibration; });
}

void pymtp_calibration_free(pymtp_calibration * calibration) {
    delete calibration;
}

void pymtp_calibration_observe(pymtp_calibration * calibration, double confidence, bool accepted) {
    calibration->observe(confidence, accepted);
}

double pymtp_calibration_probability(const pymtp_calibration * calibration, double confidence, double expected) {
    return calibration->probability(confidence, expected);
}

void pymtp_expected_round_tokens(const double * rates, int32_t n, double * tokens) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> computed = pymtp_expected_tokens({rates, rates + n});
        std::copy(computed.begin(), computed.end(), tokens);
    });
}
