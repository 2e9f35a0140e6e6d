#include "costs.h"

#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

using namespace pymtp_tuning;

pymtp_cost_table::entry pymtp_cost_table::at(int count) const {
    const auto next = entries.lower_bound(count);
    if (next != entries.end() && next->first == count) {
        return next->second;
    }
    if (next == entries.begin()) {
        return {next->second.seconds * std::sqrt((double) count / next->first), 0.0};
    }
    const auto before = std::prev(next);
    if (next != entries.end()) {
        const double share = (double) (count - before->first) / (next->first - before->first);
        return {before->second.seconds + share * (next->second.seconds - before->second.seconds), 0.0};
    }
    return {before->second.seconds * std::sqrt((double) count / before->first), 0.0};
}

double pymtp_cost_table::observe(int count, double seconds, double pace) {
    const double own = seconds / pace;
    if (!has(count)) {
        // The first run of a size allocates memory and builds a graph, so it counts only if it was fast.
        const double estimate = empty() ? own : at(count).seconds;
        entries[count] = {std::min(own, estimate), 0.0};
        return 0.0;
    }
    entry & e = entries[count];
    const double gain  = std::max(LEAST_GAIN, 1 / (1 + e.timings));
    const double error = std::log(own / e.seconds);
    if (error < -MISTIMED && e.timings < KNOWN) {
        e = {own, 1.0}; // a busy machine disturbed all earlier timings: it only makes them longer
        return 0.0;
    }
    // Limited errors lead to the median of the timings, whatever a busy machine does to some of them.
    const double limit   = CLIP * std::max(1.0, KNOWN / (1 + e.timings));
    const double limited = std::min(limit, std::max(-limit, error));
    e.seconds *= std::exp(gain * limited);
    e.timings += 1.0;
    return (1 - gain) * limited;
}

void pymtp_cost_table::seed(int count, double seconds) {
    entries[count] = {seconds, SEED_TIMINGS};
}

void pymtp_cost_table::age() {
    for (auto & [count, e] : entries) {
        e.timings *= AGE;
    }
}

static bool is_time(double seconds) {
    return seconds > 0.0 && std::isfinite(seconds);
}

void pymtp_costs::observe(int n_seqs, int drafted, double draft_took, int verified, double verify_took) {
    // After a round without drafts the head first catches up with the target, which takes longer than the drafts.
    const bool catches_up = last_drafted == 0;
    last_drafted = drafted;
    if (!is_time(verify_took)) {
        return;
    }
    verify.age();
    const double error = verify.observe(n_seqs * (1 + verified), verify_took, pace);
    if (drafted > 0 && !catches_up && is_time(draft_took)) {
        chains[n_seqs].observe(drafted, draft_took, pace);
    } else if (drafted == 1 && is_time(draft_took)) {
        if (!peeks.has(n_seqs)) {
            peeks.seed(n_seqs, std::min(draft_took, peek_seconds(n_seqs)) / pace);
        }
        peeks.observe(n_seqs, draft_took, pace);
    }
    pace = std::exp(PACE_KEPT * std::log(pace) + PACE_GAIN * error);
    is_known |= verify.at(n_seqs * (1 + verified)).timings >= SEED_TIMINGS - 1;
}

void pymtp_costs::seed(int n_seqs, int drafted, double draft_took, double verify_took) {
    verify.seed(n_seqs * (1 + drafted), verify_took / pace);
    is_known = true;
    if (drafted > 0) {
        chains[n_seqs].seed(drafted, draft_took / pace);
    }
}

double pymtp_costs::draft_seconds(int n_seqs, int drafted) const {
    if (drafted == 0) {
        return 0.0;
    }
    const auto more = chains.lower_bound(n_seqs);
    if (more != chains.end() && (more->first == n_seqs || more == chains.begin())) {
        return pace * more->second.at(drafted).seconds;
    }
    if (more == chains.begin()) {
        return drafted * STEP_SHARE * verify_seconds(n_seqs, 0);
    }
    const auto   fewer = std::prev(more);
    const double low   = fewer->second.at(drafted).seconds;
    const double high  = more != chains.end() ? more->second.at(drafted).seconds : low;
    const int    width = more != chains.end() ? more->first - fewer->first : 1;
    return pace * (low + (high - low) * (n_seqs - fewer->first) / width);
}

double pymtp_costs::peek_seconds(int n_seqs) const {
    return peeks.has(n_seqs) ? pace * peeks.at(n_seqs).seconds : 2 * draft_seconds(n_seqs, 1);
}

double pymtp_costs::verify_seconds(int n_seqs, int verified) const {
    return pace * verify.at(n_seqs * (1 + verified)).seconds;
}

double pymtp_costs::doubt(int n_seqs, int verified) const {
    return DOUBT / (1 + verify.at(n_seqs * (1 + verified)).timings);
}

std::vector<double> pymtp_costs::rounds(int n_seqs, int max_depth) const {
    std::vector<double> seconds(1 + max_depth);
    double rows = std::numeric_limits<double>::infinity(), steps = rows;
    for (int n = max_depth; n >= 0; --n) {
        rows       = std::min(rows, verify_seconds(n_seqs, n));
        steps      = std::min(steps, draft_seconds(n_seqs, n));
        seconds[n] = rows + steps;
    }
    return seconds;
}
