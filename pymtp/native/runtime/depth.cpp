#include "depth.h"

#include "border.h"
#include "pymtp_depth.h"
#include "tuning.h"

#include <algorithm>

using namespace pymtp_tuning;

pymtp_depth::pymtp_depth(pymtp_costs & costs, int most, const pymtp_depth * after) :
    acceptance(after ? &after->acceptance : nullptr), costs(costs), most(most),
    allowance(after ? std::min(CARRIED, after->allowance + EACH_REQUEST) : ALLOWANCE),
    peeks(after ? after->peeks : 1.0), recheck(after ? after->recheck : RECHECK) {
    if (after) {
        calibration = after->calibration;
    }
}

int pymtp_depth::choose(int room, int past) {
    n_past = past;
    if (rest > 0) {
        rest--;
        return 0;
    }
    const int top = std::min(room, most);
    if (top <= 0 || !costs.known()) {
        return 0;
    }
    if (steady > 0 && last <= top) {
        steady--;
    } else {
        const int before = last;
        last   = decide(top);
        steady = last != before && (trying || last == best) ? STAY : 0; // a peek is one round
    }
    expected = acceptance.rates(last);
    prices.clear();
    for (int i = 1; i <= last; ++i) {
        prices.push_back(rate * (costs.verify_seconds(1 + i, n_past) - costs.verify_seconds(i, n_past)));
    }
    return last;
}

// A depth up to top: the best one, one to try, or a peek.
int pymtp_depth::decide(int top) {
    trying = false;
    const double plain  = costs.verify_seconds(1, n_past);
    const double step   = costs.draft_seconds(1, n_past) / plain;
    const double change = costs.draft_change() / plain;
    const bool   peek   = peeked_right || std::min(MOST_PEEK, step + change) <= peeks;
    if (best == 0 && before_drafted == 0 && !peek) {
        return 0; // only a peek can show that plain decoding is not the best
    }
    std::vector<double> seconds;
    std::vector<double> least;
    costs.rounds(top, n_past, seconds, least);
    if (seconds[0] < CHEAPER * costs.verify_seconds(1, n_past)) {
        return 0; // no round of more rows takes less: plain decoding was spoilt when it was timed
    }
    const std::vector<double> tokens = pymtp_expected_tokens(acceptance.rates(top));
    best = best_of(tokens, seconds);
    rate = tokens[best] / seconds[best];

    const int n = trial(tokens, seconds, least);
    if (n != best) {
        if (n == 0) {
            rest = WARM;
            return 0;
        }
        const double loss = (least[n] + costs.change()) / seconds[0] - tokens[n];
        if (loss <= allowance) {
            trying = true;
            return n;
        }
        if (best != 0) {
            return 0; // saves up for it
        }
    }
    if (best != 0 && allowance >= -DEBT) {
        return n; // debts are allowed, for it may be bad luck
    }
    if (!peek || !hopeful(least)) {
        return 0;
    }
    peeks -= step + (before_drafted ? 0.0 : change);
    return 1;
}

// The depth that looks best, by the tokens and seconds expected of each: the one that did, unless another is clearly better.
int pymtp_depth::best_of(const std::vector<double> & tokens, const std::vector<double> & seconds) {
    int found = 0;
    for (size_t n = 1; n < tokens.size(); ++n) {
        if (tokens[n] * seconds[found] > tokens[found] * seconds[n]) {
            found = n;
        }
    }
    // a change must pay for itself in a few rounds
    const double with_change = tokens[found] / (seconds[found] + costs.change() / SOON);
    if (best < (int) tokens.size() && with_change <= (1 + MARGIN) * tokens[best] / seconds[best]) {
        return best;
    }
    return found;
}

// A depth to try now, or the best one. Of each depth: tokens that are expected, seconds that a round may take, and the
// least that it may.
int pymtp_depth::trial(
        const std::vector<double> & tokens, const std::vector<double> & seconds, const std::vector<double> & least) {
    const int top     = tokens.size() - 1;
    double    promise = (1 + PROMISE) * rate;
    int       probe   = best;
    for (int n = 1; n <= std::min(top, 2 * costs.deepest() + 1); ++n) { // one doubling after the other
        if (least[n] < seconds[n] && tokens[n] > promise * least[n]) {
            probe   = n;
            promise = tokens[n] / least[n];
        }
    }
    if (drafting >= recheck && rate * seconds[0] < CLOSE) {
        recheck = std::min(MOST_RECHECK, 2 * recheck);
        return 0;
    }
    return probe;
}

// Whether drafting may well be worth it by now: where nothing was drafted for long, acceptance may have become better.
bool pymtp_depth::hopeful(const std::vector<double> & least) const {
    const std::vector<double> tokens = pymtp_expected_tokens(acceptance.rates((int) least.size() - 1, DOUBT));
    for (size_t n = 1; n < tokens.size(); ++n) {
        if (tokens[n] > (1 + PROMISE) * rate * least[n]) {
            return true;
        }
    }
    return false;
}

int pymtp_depth::keep(const float * confidences, int n) const {
    if (trying || prices.empty()) {
        return n;
    }
    // as many as the rounds before verify, unless others are worth the change
    n = std::min<int>(n, prices.size());
    const int usual = best == 0 ? 0 : n;

    int    kept  = 0;
    double worth = 0.0, most_worth = 0.0, together = 1.0;
    for (int i = 0; i < n; ++i) {
        together *= calibration.probability(confidences[i], expected[i]);
        worth    += together - prices[i];
        if (worth >= most_worth) {
            kept       = i + 1;
            most_worth = worth;
        }
    }
    const double usual_worth = usual ? worth : 0.0;
    return most_worth > usual_worth + rate * costs.verify_change() ? kept : usual;
}

void pymtp_depth::observe(
        int drafted, int verified, int right, double draft_seconds, double verify_seconds,
        const float * confidences, int n_confidences) {
    run = drafted == before_drafted && verified == before_verified ? run + 1 : 0;
    before_drafted  = drafted;
    before_verified = verified;
    costs.observe(n_past, drafted, draft_seconds, 1 + verified, verify_seconds, run);
    if (drafted == 0) {
        drafting     = 0;
        peeked_right = false;
        acceptance.fade(1);
        earn(0.0);
        return;
    }
    drafting++;
    peeked_right = best == 0 && !trying && right > 0;
    if (right == 0) {
        steady = 0;
    }
    const int told = std::min(drafted, verified + (right >= verified));
    const std::vector<double> rates = acceptance.rates(drafted);
    for (int i = 0; i < std::min({told, right + 1, n_confidences}); ++i) {
        calibration.observe(confidences[i], i < right);
    }
    acceptance.observe(told, right, {rates.begin() + told, rates.end()}, 1 + std::min(right, verified));
    if (costs.known()) {
        double seconds = costs.draft_seconds(drafted, n_past) + costs.verify_seconds(1 + verified, n_past);
        if (run == 0) {
            seconds += verified ? costs.change() : costs.draft_change();
        }
        earn(1 + std::min(right, verified) - seconds / costs.verify_seconds(1, n_past));
    }
}

void pymtp_depth::observe_company(int drafted, int told, int right) {
    const std::vector<double> rates = acceptance.rates(drafted);
    acceptance.observe(told, right, {rates.begin() + told, rates.end()}, 1 + right);
}

void pymtp_depth::earn(double gain) {
    allowance = std::min(EARNED, std::max(-DEBT, allowance + gain + EACH_TOKEN));
    peeks     = std::min(MOST_PEEK, peeks + EACH_TOKEN + SPEND * std::max(0.0, allowance));
}

pymtp_depth * pymtp_depth_init(pymtp_costs * costs, int32_t most, const pymtp_depth * after) {
    return pymtp_guarded<pymtp_depth *>(nullptr, [&] { return new pymtp_depth(*costs, most, after); });
}

void pymtp_depth_free(pymtp_depth * depth) {
    delete depth;
}

int32_t pymtp_depth_choose(pymtp_depth * depth, int32_t room, int32_t n_past) {
    return pymtp_guarded<int32_t>(0, [&] { return depth->choose(room, n_past); });
}

int32_t pymtp_depth_keep(const pymtp_depth * depth, const float * confidences, int32_t n) {
    return pymtp_guarded<int32_t>(0, [&] { return depth->keep(confidences, n); });
}

void pymtp_depth_observe(
        pymtp_depth * depth, int32_t drafted, int32_t verified, int32_t right, double draft_seconds,
        double verify_seconds, const float * confidences, int32_t n_confidences) {
    pymtp_guarded([&] {
        pymtp_require(drafted >= 0 && verified >= 0 && verified <= drafted && right >= 0, "drafts are counted from zero");
        depth->observe(drafted, verified, right, draft_seconds, verify_seconds, confidences, n_confidences);
    });
}

void pymtp_depth_rates(const pymtp_depth * depth, int32_t n, double * rates) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> found = depth->rates(n);
        std::copy(found.begin(), found.end(), rates);
    });
}
