#include "acceptance.h"

#include "border.h"
#include "pymtp_depth.h"
#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

using namespace pymtp_tuning;

pymtp_acceptance::pymtp_acceptance(const pymtp_acceptance * after) {
    if (!after) {
        positions.push_back({{0.0, 0.0}, {FIRST_WEIGHT, FIRST_WEIGHT * FIRST_GUESS}});
        return;
    }
    const std::vector<double> rates = after->rates(after->positions.size());
    for (size_t i = 0; i < rates.size(); ++i) {
        const record & before = after->positions[i].long_run;
        const double   share  = std::min(1.0, CARRY / before.trials);
        positions.push_back({{CARRY_END, CARRY_END * rates[i]}, {share * before.trials, share * before.hits}});
    }
}

void pymtp_acceptance::fade(int tokens) {
    const double share = std::pow(DECAY, tokens);
    for (position & p : positions) {
        p.lately = {share * p.lately.trials, share * p.lately.hits};
    }
}

void pymtp_acceptance::add(size_t i, double hits, double trials) {
    if (i >= positions.size()) {
        positions.resize(i + 1);
    }
    for (record * r : {&positions[i].lately, &positions[i].long_run}) {
        r->hits   += hits;
        r->trials += trials;
    }
}

void pymtp_acceptance::observe(int told, int right, const std::vector<double> & untold, int tokens) {
    fade(tokens);
    const double share = std::pow(LONG_DECAY, tokens);
    for (position & p : positions) {
        p.long_run = {share * p.long_run.trials, share * p.long_run.hits};
    }
    for (int i = 0; i < std::min(told, right + 1); ++i) {
        add(i, i < right, 1.0);
    }
    double weight = right == told;
    for (size_t i = 0; i < untold.size(); ++i) {
        add(told + i, weight * untold[i], weight);
        weight *= untold[i];
    }
}

std::vector<double> pymtp_acceptance::rates(int n, double right) const {
    std::vector<double> rates(n);
    double usual = FIRST_GUESS; // what is expected of the position in the long run, and what the passage makes of it
    double now   = FIRST_GUESS;
    for (int i = 0; i < n; ++i) {
        const position p = i < (int) positions.size() ? positions[i] : position();

        const double guess    = i == 0 ? 0.0 : WEIGHT; // the first position's long run began with its guess
        const double weight   = p.long_run.trials + guess + right; // zero, once it has faded altogether
        const double long_run = weight > 0.0 ? (p.long_run.hits + guess * usual + right) / weight : usual;
        // where the passage is worse for the position before than usual, it is for this one; likewise where it is better
        const double passage = std::min(CERTAIN, long_run * (1 - LINK + LINK * now / usual));
        rates[i] = (p.lately.hits + RECENT * passage + right) / (p.lately.trials + RECENT + right);

        usual = FADE * long_run;
        now   = FADE * rates[i];
    }
    return rates;
}

static int bin_of(double confidence) {
    return std::upper_bound(std::begin(BINS), std::end(BINS), confidence) - std::begin(BINS);
}

static constexpr double BIN_HITS   = BIN_WEIGHT * FIRST_GUESS;
static constexpr double BIN_MISSES = BIN_WEIGHT - BIN_HITS;

pymtp_calibration::pymtp_calibration() {
    static_assert(std::size(BINS) + 1 == N_BINS, "one bin more than borders");
    std::fill_n(hits, N_BINS, BIN_HITS);
    std::fill_n(misses, N_BINS, BIN_MISSES);
}

void pymtp_calibration::observe(double confidence, bool accepted) {
    const int i = bin_of(confidence);
    hits[i]   += accepted  + (1 - BIN_DECAY) * (BIN_HITS   - hits[i]);
    misses[i] += !accepted + (1 - BIN_DECAY) * (BIN_MISSES - misses[i]);
}

double pymtp_calibration::probability(double confidence, double expected) const {
    const int    i    = bin_of(confidence);
    const double all  = std::accumulate(hits, hits + N_BINS, 0.0) / std::accumulate(misses, misses + N_BINS, 0.0);
    const double odds = hits[i] / misses[i] * std::sqrt(expected / (1 - expected) / all);

    return std::min(CERTAIN, 1 - 1 / (1 + odds)); // of infinite odds, too
}

std::vector<double> pymtp_expected_tokens(const std::vector<double> & rates) {
    std::vector<double> tokens = {1.0};
    double together = 1.0;
    for (double rate : rates) {
        together *= rate;
        tokens.push_back(tokens.back() + together);
    }
    return tokens;
}

pymtp_acceptance * pymtp_acceptance_init(const pymtp_acceptance * after) {
    return pymtp_guarded<pymtp_acceptance *>(nullptr, [&] { return new pymtp_acceptance(after); });
}

void pymtp_acceptance_free(pymtp_acceptance * acceptance) {
    delete acceptance;
}

void pymtp_acceptance_observe(pymtp_acceptance * acceptance, int32_t told, int32_t right, const double * untold, int32_t n_untold,
        int32_t tokens) {
    pymtp_guarded([&] {
        pymtp_require(told >= 0 && right >= 0 && right <= told && n_untold >= 0, "drafts are counted from zero");
        pymtp_require(tokens >= 0, "tokens are counted from zero");
        acceptance->observe(told, right, {untold, untold + n_untold}, tokens);
    });
}

void pymtp_acceptance_rates(const pymtp_acceptance * acceptance, int32_t n, double right, double * rates) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> found = acceptance->rates(n, right);
        std::copy(found.begin(), found.end(), rates);
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

void pymtp_window_tokens(const double * rates, int32_t n, double * tokens) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> found = pymtp_expected_tokens({rates, rates + n});
        std::copy(found.begin(), found.end(), tokens);
    });
}
