#include "depth.h"

#include "pymtp_depth.h"

#include <algorithm>
#include <new>

// how much better another depth must look to be taken: a little, or near ties would flap
static constexpr double MARGIN = 0.01;
// rounds in which a change of depth must pay for itself
static constexpr double SOON = 8.0;
// how much better a depth that is not known must be, if all goes well, to be tried
static constexpr double PROMISE = 0.07;
// while nothing is drafted, drafts imagined to be right, for acceptance may be better than was seen
static constexpr double DOUBT = 10.0;

// where drafting gains less than this, plain decoding is timed again,
static constexpr double CLOSE = 1.15;
// after so many rounds with drafts at first, then twice as many each time, up to so many
static constexpr int RECHECK      = 8;
static constexpr int MOST_RECHECK = 512;

// What drafting may lose against plain decoding, in tokens of it. Where no draft is ever accepted, 3% of 256 are 7.7.
// The allowance of a new LLM, the most that it grows to by what drafting gains, and what a new request begins with of that:
static constexpr double ALLOWANCE = 2.5;
static constexpr double EARNED    = 24.0;
static constexpr double CARRIED   = 20.0;
// what a depth that looks best may lose beyond it
static constexpr double DEBT = 1.0;
// what comes on top
static constexpr double EACH_REQUEST = 0.25;
static constexpr double EACH_TOKEN   = 0.003;
// for peeks: as much again of each token, this of the allowance; one is taken to cost no more than this
static constexpr double SPEND     = 0.005;
static constexpr double MOST_PEEK = 4.0;

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
        last = decide(top);
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
    const std::vector<double> tokens = pymtp_expected_tokens(acceptance.rates(top));
    best = best_of(tokens, seconds);
    rate = tokens[best] / seconds[best];

    const int n = trial(tokens, seconds, least);
    if (n == 0) {
        rest = best == 0 ? 0 : pymtp_costs::WARM;
        return 0;
    }
    if (n != best && (best != 0 || costs.missing(n))) {
        const double loss = (least[n] + costs.change()) / seconds[0] - tokens[n];
        if (loss <= allowance) {
            trying = true;
            steady = costs.missing(n) ? pymtp_costs::WARM + costs.missing(n) - 1 : 0;
            return n;
        }
        if (best != 0) {
            return 0; // saves up for it
        }
    }
    if (best != 0) {
        return allowance < -DEBT ? 0 : n; // debts are allowed, for it may be bad luck
    }
    if (!peek) {
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
    if (best == 0) {
        // any depth tells about acceptance, so that the cheapest will do
        const std::vector<double> hoped = pymtp_expected_tokens(acceptance.rates(top, DOUBT));
        for (int n = 1; n <= top; ++n) {
            probe |= hoped[n] > promise * least[n];
        }
    }
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
    if (trying && right == 0) {
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

void pymtp_depth::earn(double gain) {
    allowance = std::min(EARNED, std::max(-DEBT, allowance + gain + EACH_TOKEN));
    peeks     = std::min(MOST_PEEK, peeks + EACH_TOKEN + SPEND * std::max(0.0, allowance));
}

pymtp_depth * pymtp_depth_init(pymtp_costs * costs, int32_t most, const pymtp_depth * after) {
    return new (std::nothrow) pymtp_depth(*costs, most, after);
}

void pymtp_depth_free(pymtp_depth * depth) {
    delete depth;
}

int32_t pymtp_depth_choose(pymtp_depth * depth, int32_t room, int32_t n_past) {
    return depth->choose(room, n_past);
}

int32_t pymtp_depth_keep(const pymtp_depth * depth, const float * confidences, int32_t n) {
    return depth->keep(confidences, n);
}

void pymtp_depth_observe(
        pymtp_depth * depth, int32_t drafted, int32_t verified, int32_t right, double draft_seconds,
        double verify_seconds, const float * confidences, int32_t n_confidences) {
    depth->observe(drafted, verified, right, draft_seconds, verify_seconds, confidences, n_confidences);
}

const pymtp_acceptance * pymtp_depth_acceptance(const pymtp_depth * depth) {
    return &depth->acceptance;
}
