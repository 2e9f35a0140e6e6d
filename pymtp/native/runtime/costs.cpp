#include "costs.h"

#include "border.h"
#include "pymtp_depth.h"
#include "threads/team.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

void pymtp_costs::observe(int n_past, int drafted, double draft_took, int rows, double verify_took, int run) {
    constexpr double UNKNOWN = std::numeric_limits<double>::infinity();
    if (drafted > 0) {
        draft.observe(drafted, n_past, draft_took, verify.known() ? draft_seconds(drafted, n_past) : UNKNOWN, run);
    }
    if (verify.observe(rows, n_past, verify_took, verify.known() ? verify_seconds(rows, n_past) : UNKNOWN, run)) {
        last_rows = rows;
    }
}

void pymtp_costs::begin_verify(int rows, double seconds) {
    verify.begin(rows, seconds);
    measured |= rows == 1;
}

void pymtp_costs::begin_draft(int n, double seconds) {
    draft.begin(n, seconds);
}

double pymtp_costs::draft_seconds(int n, int n_past) const {
    if (n == 0) {
        return 0.0;
    }
    return draft.known() ? draft.at(n, n_past) : n * STEP_SHARE * verify_seconds(1, n_past);
}

void pymtp_costs::rounds(int top, int n_past, std::vector<double> & likely, std::vector<double> & least) {
    likely.clear();
    least.clear();
    double floor = 0.0; // no more rows are cheaper than fewer that are known well
    for (int n = 0; n <= top; ++n) {
        const double drafts = draft_seconds(n, n_past);
        const double rows   = verify_seconds(1 + n, n_past);
        const double luck   = std::exp(-HOPE * verify.doubt(1 + n, last_rows));
        likely.push_back(drafts + rows);
        least.push_back(drafts + std::min(rows, std::max(floor, luck * rows)));
        if (!unsure(n)) {
            floor = std::max(floor, rows);
        }
    }
    likely[0] = least[0] = *std::min_element(likely.begin(), likely.end()); // or plain decoding was spoilt when it was timed
}

pymtp_costs * pymtp_costs_init(void) {
    return pymtp_guarded<pymtp_costs *>(nullptr, [] { return new pymtp_costs; });
}

void pymtp_costs_free(pymtp_costs * costs) {
    delete costs;
}

void pymtp_costs_forget(pymtp_costs * costs) {
    pymtp_guarded([&] { *costs = pymtp_costs{}; });
}

void pymtp_watch_quota(const char * folder) {
    pymtp_guarded([&] { pymtp_team_watch_quota(folder); });
}

uint32_t pymtp_thread_changes(void) {
    return pymtp_team_changes();
}

uint32_t pymtp_thread_trials(void) {
    return pymtp_team_trials();
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
        pymtp_require(rows >= 1 && seconds > 0 && std::isfinite(seconds), "a verification has a row and takes time");
        costs->begin_verify(rows, seconds);
    });
}

void pymtp_costs_begin_draft(pymtp_costs * costs, int32_t n, double seconds) {
    pymtp_guarded([&] {
        pymtp_require(n >= 1 && seconds > 0 && std::isfinite(seconds), "a chain has a step and takes time");
        costs->begin_draft(n, seconds);
    });
}

double pymtp_costs_verify(const pymtp_costs * costs, int32_t rows, int32_t n_past) {
    return costs->verify_seconds(rows, n_past);
}

double pymtp_costs_draft(const pymtp_costs * costs, int32_t n, int32_t n_past) {
    return costs->draft_seconds(n, n_past);
}

void pymtp_costs_rounds(pymtp_costs * costs, int32_t top, int32_t n_past, double * likely, double * least) {
    pymtp_guarded([&] {
        pymtp_require(top >= 0, "depths are counted from zero");
        std::vector<double> found;
        std::vector<double> found_least;
        costs->rounds(top, n_past, found, found_least);
        std::copy(found.begin(), found.end(), likely);
        std::copy(found_least.begin(), found_least.end(), least);
    });
}
