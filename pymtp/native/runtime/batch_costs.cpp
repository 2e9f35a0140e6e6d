#include "batch_costs.h"

#include "border.h"
#include "pymtp_depth.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

void pymtp_batch_costs::observe(int n_seqs, int n_past, int n, double draft_took, int rows, double verify_took, bool cold) {
    const int run = cold ? 0 : WARM;
    constexpr double UNKNOWN = std::numeric_limits<double>::infinity();
    if (n > 0) {
        step.observe(n_seqs, n_past, draft_took / n, verify.known() ? step_seconds(n_seqs, n_past) : UNKNOWN, run);
    }
    const int count = n_seqs * rows;
    if (verify.observe(count, n_past, verify_took, verify.known() ? verify.at(count, n_past) : UNKNOWN, run)) {
        last_rows = count;
    }
}

void pymtp_batch_costs::begin(const pymtp_costs & single) {
    if (!single.known()) {
        return;
    }
    for (int rows = 1; rows <= MOST_TIMED; rows *= 2) {
        verify.begin(rows, single.verify_seconds(rows, 0));
    }
    // further rows are taken to go on along the line of the last ones, which a busy machine may have made fall
    const double most = single.verify_seconds(MOST_TIMED, 0);
    const double row  = std::max(0.0, most - single.verify_seconds(MOST_TIMED/2, 0)) / (MOST_TIMED - MOST_TIMED/2);
    for (int rows = 2*MOST_TIMED; rows <= 16*MOST_TIMED; rows *= 2) {
        verify.guess(rows, most + row * (rows - MOST_TIMED), BEYOND_NOISE * std::log2((double) rows / MOST_TIMED));
    }
    step.begin(1, single.draft_seconds(1, 0));
}

void pymtp_batch_costs::begin(int n_seqs, int n, double draft_took, double verify_took) {
    if (n > 0) {
        step.begin(n_seqs, draft_took / n);
    }
    verify.begin(n_seqs * (1 + n), verify_took);
}

double pymtp_batch_costs::step_seconds(int n_seqs, int n_past) const {
    return step.known() ? step.at(n_seqs, n_past) : STEP_SHARE * verify.at(n_seqs, n_past);
}

void pymtp_batch_costs::rounds(int n_seqs, int top, int n_past, std::vector<double> & likely, std::vector<double> & least) {
    likely.clear();
    least.clear();
    double floor = 0.0; // no more rows are cheaper than fewer that are known well
    for (int n = 0; n <= top; ++n) {
        const int    count  = n_seqs * (1 + n);
        const double drafts = n > 0 ? n * step_seconds(n_seqs, n_past) : 0.0;
        const double rows   = verify.at(count, n_past);
        const double doubt  = verify.doubt(count, last_rows);
        likely.push_back(drafts + rows);
        least.push_back(drafts + std::min(rows, std::max(floor, std::exp(-HOPE * doubt) * rows)));
        if (doubt <= SURE) {
            floor = std::max(floor, rows);
        }
    }
}

pymtp_batch_costs * pymtp_batch_costs_init(const pymtp_costs * single) {
    return pymtp_guarded<pymtp_batch_costs *>(nullptr, [&] {
        auto * costs = new pymtp_batch_costs;
        costs->begin(*single);
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
        pymtp_batch_costs * costs, int32_t n_seqs, int32_t top, int32_t n_past, double * likely, double * least) {
    return pymtp_guarded<bool>(false, [&] {
        pymtp_require(n_seqs >= 1 && top >= 0 && n_past >= 0, "a round has a sequence, and depths are counted from zero");
        if (!costs->known()) {
            return false;
        }
        std::vector<double> found;
        std::vector<double> found_least;
        costs->rounds(n_seqs, top, n_past, found, found_least);
        std::copy(found.begin(), found.end(), likely);
        std::copy(found_least.begin(), found_least.end(), least);
        return true;
    });
}
