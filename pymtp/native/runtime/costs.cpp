#include "costs.h"

#include "api_guard.h"
#include "pymtp_depth.h"
#include "threads/team.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

void pymtp_costs::observe(int n_past, int drafted, double draft_took, int rows, double verify_took, int repeats) {
    constexpr double UNKNOWN = std::numeric_limits<double>::infinity();
    if (drafted > 0) {
        draft.observe(drafted, n_past, draft_took, verify.known() ? draft_seconds(drafted, n_past) : UNKNOWN, repeats);
    }
    if (verify.observe(rows, n_past, verify_took, verify.known() ? verify_seconds(rows, n_past) : UNKNOWN, repeats)) {
        last_rows = rows;
    }
}

void pymtp_costs::seed_verify(int rows, double seconds) {
    verify.seed(rows, seconds);
    is_seeded |= rows == 1;
}

void pymtp_costs::seed_draft(int n, double seconds) {
    draft.seed(n, seconds);
}

double pymtp_costs::draft_seconds(int n, int n_past) const {
    if (n == 0) {
        return 0.0;
    }
    return draft.known() ? draft.seconds_at(n, n_past) : n * STEP_SHARE * verify_seconds(1, n_past);
}

void pymtp_costs::rounds(int max_depth, int n_past, std::vector<double> & expected, std::vector<double> & optimistic) {
    expected.clear();
    optimistic.clear();
    double floor = 0.0; // highest time that is known well: a verification of more rows cannot take less
    for (int n = 0; n <= max_depth; ++n) {
        const double drafts   = draft_seconds(n, n_past);
        const double rows     = verify_seconds(1 + n, n_past);
        const double optimism = std::exp(-HOPE * verify.uncertainty(1 + n, last_rows));
        expected.push_back(drafts + rows);
        optimistic.push_back(drafts + std::min(rows, std::max(floor, optimism * rows)));
        if (!is_unsure(n)) {
            floor = std::max(floor, rows);
        }
    }
    // If a round with drafts seems to take less than a plain round, the plain rounds were mistimed: use the lower time.
    expected[0] = optimistic[0] = *std::min_element(expected.begin(), expected.end());
}

pymtp_costs * pymtp_costs_init(void) {
    return pymtp_guarded<pymtp_costs *>(nullptr, [] { return new pymtp_costs; });
}

void pymtp_costs_free(pymtp_costs * costs) {
    delete costs;
}

void pymtp_costs_reset(pymtp_costs * costs) {
    pymtp_guarded([&] { *costs = pymtp_costs{}; });
}

void pymtp_watch_cpu_quota(const char * folder) {
    pymtp_guarded([&] { pymtp_team_watch_quota(folder); });
}

uint32_t pymtp_thread_count_changes(void) {
    return pymtp_team_changes();
}

uint32_t pymtp_thread_count_trials(void) {
    return pymtp_team_trials();
}

void pymtp_costs_observe(
        pymtp_costs * costs, int32_t n_past, int32_t drafted, double draft_seconds, int32_t rows, double verify_seconds,
        int32_t repeats) {
    pymtp_guarded([&] {
        pymtp_require(drafted >= 0 && rows >= 1 && n_past >= 0, "a round has a row, and drafts are counted from zero");
        costs->observe(n_past, drafted, draft_seconds, rows, verify_seconds, repeats);
    });
}

void pymtp_costs_seed_verify(pymtp_costs * costs, int32_t rows, double seconds) {
    pymtp_guarded([&] {
        pymtp_require(rows >= 1 && seconds > 0 && std::isfinite(seconds), "a verification has a row and takes time");
        costs->seed_verify(rows, seconds);
    });
}

void pymtp_costs_seed_draft(pymtp_costs * costs, int32_t n, double seconds) {
    pymtp_guarded([&] {
        pymtp_require(n >= 1 && seconds > 0 && std::isfinite(seconds), "a chain has a step and takes time");
        costs->seed_draft(n, seconds);
    });
}

double pymtp_costs_verify(const pymtp_costs * costs, int32_t rows, int32_t n_past) {
    return costs->verify_seconds(rows, n_past);
}

double pymtp_costs_draft(const pymtp_costs * costs, int32_t n, int32_t n_past) {
    return costs->draft_seconds(n, n_past);
}

void pymtp_costs_rounds(pymtp_costs * costs, int32_t max_depth, int32_t n_past, double * expected,
        double * optimistic) {
    pymtp_guarded([&] {
        pymtp_require(max_depth >= 0, "depths are counted from zero");
        std::vector<double> expected_seconds;
        std::vector<double> optimistic_seconds;
        costs->rounds(max_depth, n_past, expected_seconds, optimistic_seconds);
        std::copy(expected_seconds.begin(), expected_seconds.end(), expected);
        std::copy(optimistic_seconds.begin(), optimistic_seconds.end(), optimistic);
    });
}
