#include "depth.h"

#include "api_guard.h"
#include "pymtp_depth.h"
#include "tuning.h"

#include <algorithm>

using namespace pymtp_tuning;

pymtp_depth::pymtp_depth(pymtp_costs & costs, int max_drafts, const pymtp_depth * previous) :
    acceptance(previous ? &previous->acceptance : nullptr), costs(costs), max_drafts(max_drafts),
    budget(previous ? std::min(CARRIED, previous->budget + EACH_REQUEST) : ALLOWANCE),
    peek_budget(previous ? previous->peek_budget : 1.0),
    rounds_to_recheck(previous ? previous->rounds_to_recheck : RECHECK) {
    if (previous) {
        calibration = previous->calibration;
    }
}

int pymtp_depth::choose(int limit, int n_tokens) {
    n_past = n_tokens;
    if (plain_rounds_left > 0) {
        plain_rounds_left--;
        return 0;
    }
    const int max_depth = std::min(limit, max_drafts);
    if (max_depth <= 0 || !costs.known()) {
        return 0;
    }
    if (rounds_at_depth > 0 && depth <= max_depth) {
        rounds_at_depth--;
    } else {
        const int before = depth;
        depth           = decide(max_depth);
        // after a change to a tried or best depth, keep it for some rounds; a peek lasts one round
        rounds_at_depth = depth != before && (is_trial || depth == best) ? STAY : 0;
    }
    probabilities = acceptance.rates(depth);
    row_prices.clear();
    for (int i = 1; i <= depth; ++i) {
        row_prices.push_back(rate * (costs.verify_seconds(1 + i, n_past) - costs.verify_seconds(i, n_past)));
    }
    return depth;
}

// Returns the depth of the next round, at most max_depth: the best depth, a depth to try, or 1 for a peek. Also updates
// `best`, `rate`, `is_trial` and the budget for peeks.
int pymtp_depth::decide(int max_depth) {
    is_trial = false;
    const double plain  = costs.verify_seconds(1, n_past);
    const double step   = costs.draft_seconds(1, n_past) / plain;
    const double change = costs.draft_change_seconds() / plain;
    const bool   peek   = last_peek_correct || std::min(MOST_PEEK, step + change) <= peek_budget;
    if (best == 0 && prev_drafted == 0 && !peek) {
        return 0; // only a peek could show that drafting pays off
    }
    std::vector<double> seconds;
    std::vector<double> optimistic;
    costs.rounds(max_depth, n_past, seconds, optimistic);
    if (seconds[0] < CHEAPER * costs.verify_seconds(1, n_past)) {
        // a round with drafts seems to take less than a plain one, so plain decoding was mistimed: time it again
        return 0;
    }
    const std::vector<double> tokens = pymtp_expected_tokens(acceptance.rates(max_depth));
    best = choose_best(tokens, seconds);
    rate = tokens[best] / seconds[best];

    const int n = choose_trial(tokens, seconds, optimistic);
    if (n != best) {
        if (n == 0) {
            plain_rounds_left = WARM;
            return 0;
        }
        const double loss = (optimistic[n] + costs.change_seconds()) / seconds[0] - tokens[n];
        if (loss <= budget) {
            is_trial = true;
            return n;
        }
        if (best != 0) {
            return 0; // a plain round saves budget for the trial
        }
    }
    if (best != 0 && budget >= -DEBT) {
        return n; // the budget may be overdrawn a little, because losses may be bad luck
    }
    if (!peek || !may_pay_off(optimistic)) {
        return 0;
    }
    peek_budget -= step + (prev_drafted ? 0.0 : change);
    return 1;
}

// Returns the depth with the most expected tokens/s, but keeps the previous best depth unless another is clearly
// better.
// tokens, seconds: the expected tokens and the expected seconds of a round at each depth
int pymtp_depth::choose_best(const std::vector<double> & tokens, const std::vector<double> & seconds) {
    int candidate = 0;
    for (size_t n = 1; n < tokens.size(); ++n) {
        if (tokens[n] * seconds[candidate] > tokens[candidate] * seconds[n]) {
            candidate = n;
        }
    }
    // the gain of another depth must exceed the cost of the change within SOON rounds
    const double with_change = tokens[candidate] / (seconds[candidate] + costs.change_seconds() / SOON);
    if (best < (int) tokens.size() && with_change <= (1 + MARGIN) * tokens[best] / seconds[best]) {
        return best;
    }
    return candidate;
}

// Returns a depth to try now, or the best depth if none is worth trying.
// tokens, seconds, optimistic: for each depth, the expected tokens, the expected seconds and the optimistic seconds of
// a round
int pymtp_depth::choose_trial(
        const std::vector<double> & tokens, const std::vector<double> & seconds,
        const std::vector<double> & optimistic) {
    const int max_depth = tokens.size() - 1;
    double    promise   = (1 + PROMISE) * rate;
    int       probe     = best;
    // a trial at most doubles the largest number of rows timed so far
    for (int n = 1; n <= std::min(max_depth, 2 * costs.max_timed_drafts() + 1); ++n) {
        if (optimistic[n] < seconds[n] && tokens[n] > promise * optimistic[n]) {
            probe   = n;
            promise = tokens[n] / optimistic[n];
        }
    }
    if (rounds_drafting >= rounds_to_recheck && rate * seconds[0] < CLOSE) {
        rounds_to_recheck = std::min(MOST_RECHECK, 2 * rounds_to_recheck);
        return 0;
    }
    return probe;
}

// Returns whether drafting may pay off if acceptance has improved during plain decoding, which does not observe it.
// optimistic: for each depth, the optimistic seconds of a round
bool pymtp_depth::may_pay_off(const std::vector<double> & optimistic) const {
    const std::vector<double> tokens = pymtp_expected_tokens(acceptance.rates((int) optimistic.size() - 1, DOUBT));
    for (size_t n = 1; n < tokens.size(); ++n) {
        if (tokens[n] > (1 + PROMISE) * rate * optimistic[n]) {
            return true;
        }
    }
    return false;
}

int pymtp_depth::n_to_verify(const float * confidences, int n) const {
    if (is_trial || row_prices.empty()) {
        return n;
    }
    // Verify the usual number of drafts (all, or none in a peek), unless another number gains more than the change
    // costs.
    n = std::min<int>(n, row_prices.size());
    const int usual = best == 0 ? 0 : n;

    int    kept  = 0;
    double worth = 0.0, max_worth = 0.0, all_accepted = 1.0;
    for (int i = 0; i < n; ++i) {
        all_accepted *= calibration.probability(confidences[i], probabilities[i]);
        worth    += all_accepted - row_prices[i];
        if (worth >= max_worth) {
            kept      = i + 1;
            max_worth = worth;
        }
    }
    const double usual_worth = usual ? worth : 0.0;
    return max_worth > usual_worth + rate * costs.verify_change_seconds() ? kept : usual;
}

void pymtp_depth::observe(
        int drafted, int verified, int correct, double draft_seconds, double verify_seconds,
        const float * confidences, int n_confidences) {
    repeats       = drafted == prev_drafted && verified == prev_verified ? repeats + 1 : 0;
    prev_drafted  = drafted;
    prev_verified = verified;
    costs.observe(n_past, drafted, draft_seconds, 1 + verified, verify_seconds, repeats);
    if (drafted == 0) {
        rounds_drafting   = 0;
        last_peek_correct = false;
        acceptance.fade(1);
        update_budget(0.0);
        return;
    }
    rounds_drafting++;
    last_peek_correct = best == 0 && !is_trial && correct > 0;
    if (correct == 0) {
        rounds_at_depth = 0;
    }
    const int judged = std::min(drafted, verified + (correct >= verified));
    const std::vector<double> rates = acceptance.rates(drafted);
    for (int i = 0; i < std::min({judged, correct + 1, n_confidences}); ++i) {
        calibration.observe(confidences[i], i < correct);
    }
    acceptance.observe(judged, correct, {rates.begin() + judged, rates.end()}, 1 + std::min(correct, verified));
    if (costs.known()) {
        double seconds = costs.draft_seconds(drafted, n_past) + costs.verify_seconds(1 + verified, n_past);
        if (repeats == 0) {
            seconds += verified ? costs.change_seconds() : costs.draft_change_seconds();
        }
        update_budget(1 + std::min(correct, verified) - seconds / costs.verify_seconds(1, n_past));
    }
}

void pymtp_depth::observe_in_batch(int drafted, int judged, int correct) {
    const std::vector<double> rates = acceptance.rates(drafted);
    acceptance.observe(judged, correct, {rates.begin() + judged, rates.end()}, 1 + correct);
}

void pymtp_depth::update_budget(double gain) {
    budget      = std::min(EARNED, std::max(-DEBT, budget + gain + EACH_TOKEN));
    peek_budget = std::min(MOST_PEEK, peek_budget + EACH_TOKEN + SPEND * std::max(0.0, budget));
}

pymtp_depth * pymtp_depth_init(pymtp_costs * costs, int32_t max_drafts, const pymtp_depth * previous) {
    return pymtp_guarded<pymtp_depth *>(nullptr, [&] { return new pymtp_depth(*costs, max_drafts, previous); });
}

void pymtp_depth_free(pymtp_depth * depth) {
    delete depth;
}

int32_t pymtp_depth_choose(pymtp_depth * depth, int32_t limit, int32_t n_past) {
    return pymtp_guarded<int32_t>(0, [&] { return depth->choose(limit, n_past); });
}

int32_t pymtp_depth_n_to_verify(const pymtp_depth * depth, const float * confidences, int32_t n) {
    return pymtp_guarded<int32_t>(0, [&] { return depth->n_to_verify(confidences, n); });
}

void pymtp_depth_observe(
        pymtp_depth * depth, int32_t drafted, int32_t verified, int32_t correct, double draft_seconds,
        double verify_seconds, const float * confidences, int32_t n_confidences) {
    pymtp_guarded([&] {
        pymtp_require(drafted >= 0 && verified >= 0 && verified <= drafted && correct >= 0,
                "drafts are counted from zero");
        depth->observe(drafted, verified, correct, draft_seconds, verify_seconds, confidences, n_confidences);
    });
}

void pymtp_depth_rates(const pymtp_depth * depth, int32_t n, double * rates) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> candidate = depth->rates(n);
        std::copy(candidate.begin(), candidate.end(), rates);
    });
}
