#include "batch_costs.h"

#include "api_guard.h"
#include "pymtp_depth.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

void pymtp_batch_costs::observe(int n_seqs, int n_past, int n, double draft_took, int rows, double verify_took,
        bool cold) {
    const int repeats = cold ? 0 : WARM;
    constexpr double UNKNOWN = std::numeric_limits<double>::infinity();
    if (n > 0) {
        step.observe(n_seqs, n_past, draft_took / n, verify.known() ? step_seconds(n_seqs, n_past) : UNKNOWN, repeats);
    }
    const int count = n_seqs * rows;
    if (verify.observe(count, n_past, verify_took, verify.known() ? verify.seconds_at(count, n_past) : UNKNOWN,
            repeats)) {
        last_rows = count;
    }
}

void pymtp_batch_costs::seed(const pymtp_costs & single) {
    if (!single.known()) {
        return;
    }
    for (int rows = 1; rows <= MOST_TIMED; rows *= 2) {
        verify.seed(rows, single.verify_seconds(rows, 0));
    }
    // Beyond MOST_TIMED rows, extrapolate the line through the two largest timed numbers of rows. The slope is at least
    // 0: on a busy machine, timings may make more rows look cheaper.
    const double max_seconds = single.verify_seconds(MOST_TIMED, 0);
    const double row_seconds =
        std::max(0.0, max_seconds - single.verify_seconds(MOST_TIMED/2, 0)) / (MOST_TIMED - MOST_TIMED/2);
    for (int rows = 2*MOST_TIMED; rows <= 16*MOST_TIMED; rows *= 2) {
        verify.seed_guess(rows, max_seconds + row_seconds * (rows - MOST_TIMED),
                BEYOND_NOISE * std::log2((double) rows / MOST_TIMED));
    }
    step.seed(1, single.draft_seconds(1, 0));
}

void pymtp_batch_costs::seed(int n_seqs, int n, double draft_took, double verify_took) {
    if (n > 0) {
        step.seed(n_seqs, draft_took / n);
    }
    verify.seed(n_seqs * (1 + n), verify_took);
}

double pymtp_batch_costs::step_seconds(int n_seqs, int n_past) const {
    return step.known() ? step.seconds_at(n_seqs, n_past) : STEP_SHARE * verify.seconds_at(n_seqs, n_past);
}

void pymtp_batch_costs::rounds(int n_seqs, int max_depth, int n_past, std::vector<double> & expected,
        std::vector<double> & optimistic) {
    expected.clear();
    optimistic.clear();
    double floor = 0.0; // highest time that is known well: a verification of more rows cannot take less
    for (int n = 0; n <= max_depth; ++n) {
        const int    count       = n_seqs * (1 + n);
        const double drafts      = n > 0 ? n * step_seconds(n_seqs, n_past) : 0.0;
        const double rows        = verify.seconds_at(count, n_past);
        const double uncertainty = verify.uncertainty(count, last_rows);
        expected.push_back(drafts + rows);
        optimistic.push_back(drafts + std::min(rows, std::max(floor, std::exp(-HOPE * uncertainty) * rows)));
        if (uncertainty <= SURE) {
            floor = std::max(floor, rows);
        }
    }
}

pymtp_batch_costs * pymtp_batch_costs_init(const pymtp_costs * single) {
    return pymtp_guarded<pymtp_batch_costs *>(nullptr, [&] {
        auto * costs = new pymtp_batch_costs;
        costs->seed(*single);
        return costs;
    });
}

void pymtp_batch_costs_free(pymtp_batch_costs * costs) {
    delete costs;
}

void pymtp_batch_costs_observe(
        pymtp_batch_costs * costs, int32_t n_seqs, int32_t n_past, int32_t n, double draft_seconds, int32_t rows,
        double verify_seconds, bool cold) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && n_past >= 0 && n >= 0 && rows >= 1, "a round has a sequence and a row of it");
        costs->observe(n_seqs, n_past, n, draft_seconds, rows, verify_seconds, cold);
    });
}

bool pymtp_batch_costs_rounds(
        pymtp_batch_costs * costs, int32_t n_seqs, int32_t max_depth, int32_t n_past, double * expected,
        double * optimistic) {
    return pymtp_guarded<bool>(false, [&] {
        pymtp_require(n_seqs >= 1 && max_depth >= 0 && n_past >= 0,
                "a round has a sequence, and depths are counted from zero");
        if (!costs->known()) {
            return false;
        }
        std::vector<double> expected_seconds;
        std::vector<double> optimistic_seconds;
        costs->rounds(n_seqs, max_depth, n_past, expected_seconds, optimistic_seconds);
        std::copy(expected_seconds.begin(), expected_seconds.end(), expected);
        std::copy(optimistic_seconds.begin(), optimistic_seconds.end(), optimistic);
        return true;
    });
}
