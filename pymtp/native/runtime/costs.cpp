#include "costs.h"

#include "border.h"
#include "pymtp_depth.h"

#include <algorithm>
#include <iterator>
#include <limits>

using namespace pymtp_tuning;

static constexpr double UNKNOWN = std::numeric_limits<double>::infinity();

void pymtp_curve::observe(int x, int n_past, double seconds, double expected, int run) {
    if (run < WARM && seconds > CHEAPER * expected && known()) {
        if (run == 0 && missing(x, SETTLED) == 0) {
            cold += COLD_GAIN * (std::min(seconds - expected, expected) - cold);
        }
        return;
    }
    if (++n % STALE == 0) {
        for (auto & [other, c] : counts) {
            c.times = other > 1 ? std::max(0, std::min(c.times, SETTLED) - 1) : c.times;
        }
    }
    const auto found = counts.find(x);
    const int  times = found == counts.end() ? 0 : found->second.times;
    const double own = found == counts.end() ? 0.0 : found->second.own;

    const double context  = part(x, n_past);
    const double estimate = pace * own + growth * context;

    if (times < SETTLED || seconds < estimate / 2) { // half of it: what was timed before was spoilt
        seconds   = std::min(seconds, times ? estimate : DOUBLE * expected);
        counts[x] = {std::max(seconds - growth * context, seconds / 10) / pace, times + 1};
        return;
    }
    found->second.times++;
    const double error = std::min(CLIP * estimate, seconds - estimate);
    if (times < EARLY) {
        found->second.own += error / times / pace;
        return;
    }
    found->second.own *= 1 + OWN_GAIN * error / estimate;
    const double step = GAIN * error / (own * own + context * context);
    pace   = std::max(pace / 2, pace + step * own);
    growth = std::max(0.0, growth + step * context);
}

int pymtp_curve::missing(int x, int least) const {
    const auto found = counts.find(x);
    return std::max(0, least - (found == counts.end() ? 0 : found->second.times));
}

double pymtp_curve::at(int x, int n_past) const {
    if (!known()) {
        return UNKNOWN;
    }
    const auto next = counts.lower_bound(x);
    double own;
    if (next != counts.end() && next->first == x) {
        own = next->second.own;
    } else if (counts.size() == 1) {
        const auto & [first, c] = *counts.begin();
        own = c.own * (1 + share * (x - 1)) / (1 + share * (first - 1));
    } else {
        auto b = next == counts.begin() ? std::next(next) : next == counts.end() ? std::prev(next) : next;
        auto a = next == counts.end() ? counts.begin() : std::prev(b);
        const double slope = (b->second.own - a->second.own) / (b->first - a->first);
        own = a->second.own + slope * (x - a->first);
        const auto & [first, c] = *counts.begin();
        own = std::max(own, x < first ? c.own * x / first : c.own);
    }
    return pace * own + growth * part(x, n_past);
}

double pymtp_curve::part(int x, int n_past) const {
    return known() ? counts.begin()->second.own * x * n_past / CONTEXT : 0.0;
}

void pymtp_costs::observe(int n_past, int drafted, double draft_took, int rows, double verify_took, int run) {
    if (drafted > 0) {
        draft.observe(drafted, n_past, draft_took, verify.known() ? draft_seconds(drafted, n_past) : UNKNOWN, run);
    }
    verify.observe(rows, n_past, verify_took, verify.known() ? verify_seconds(rows, n_past) : UNKNOWN, run);
}

void pymtp_costs::begin_verify(int rows, double seconds) {
    verify.begin(rows, seconds, rows == 1 ? PLAIN : SETTLED);
}

void pymtp_costs::begin_draft(int n, double seconds) {
    draft.begin(n, seconds, SETTLED);
}

bool pymtp_costs::known() const {
    return verify.missing(1, PLAIN) == 0;
}

int pymtp_costs::missing(int n) const {
    return verify.missing(1 + n, SETTLED);
}

double pymtp_costs::draft_seconds(int n, int n_past) const {
    if (n == 0) {
        return 0.0;
    }
    return draft.known() ? draft.at(n, n_past) : n * STEP_SHARE * verify_seconds(1, n_past);
}

void pymtp_costs::rounds(int top, int n_past, std::vector<double> & likely, std::vector<double> & least) const {
    likely.clear();
    least.clear();
    double floor = UNKNOWN;
    for (int n = 0; n <= top; ++n) {
        const double drafts = draft_seconds(n, n_past);
        const double rows   = verify_seconds(1 + n, n_past);
        if (missing(n) == 0) {
            floor = rows;
        }
        const double luck = missing(n) < SETTLED || verify.between(1 + n) ? OLD_LUCK : LUCK;
        likely.push_back(drafts + rows);
        least.push_back(drafts + std::min(rows, std::max(floor, luck * rows)));
    }
    likely[0] = least[0] = *std::min_element(likely.begin(), likely.end()); // or plain decoding was spoilt when it was timed
}

pymtp_costs * pymtp_costs_init(void) {
    return pymtp_guarded<pymtp_costs *>(nullptr, [] { return new pymtp_costs; });
}

void pymtp_costs_free(pymtp_costs * costs) {
    delete costs;
}

void pymtp_costs_observe(
        pymtp_costs * costs, int32_t n_past, int32_t drafted, double draft_seconds, int32_t rows, double verify_seconds,
        int32_t run) {
    pymtp_guarded([&] {
        pymtp_require(drafted >= 0 && rows >= 1 && n_past >= 0, "a round has a row, and drafts are counted from zero");
        costs->observe(n_past, drafted, draft_seconds, rows, verify_seconds, run);
    });
}

void pymtp_costs_begin_verify(pymtp_costs * costs, int32_t rows, double seconds) {
    pymtp_guarded([&] {
        pymtp_require(rows >= 1 && seconds > 0, "a verification has a row and takes time");
        costs->begin_verify(rows, seconds);
    });
}

void pymtp_costs_begin_draft(pymtp_costs * costs, int32_t n, double seconds) {
    pymtp_guarded([&] {
        pymtp_require(n >= 1 && seconds > 0, "a chain has a step and takes time");
        costs->begin_draft(n, seconds);
    });
}

double pymtp_costs_verify(const pymtp_costs * costs, int32_t rows, int32_t n_past) {
    return costs->verify_seconds(rows, n_past);
}

double pymtp_costs_draft(const pymtp_costs * costs, int32_t n, int32_t n_past) {
    return costs->draft_seconds(n, n_past);
}

void pymtp_costs_rounds(const pymtp_costs * costs, int32_t top, int32_t n_past, double * likely, double * least) {
    pymtp_guarded([&] {
        pymtp_require(top >= 0, "depths are counted from zero");
        std::vector<double> found;
        std::vector<double> found_least;
        costs->rounds(top, n_past, found, found_least);
        std::copy(found.begin(), found.end(), likely);
        std::copy(found_least.begin(), found_least.end(), least);
    });
}
