#include "costs.h"

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
        return {before->second.seconds + share * (next->second.seconds - before->second.seconds),
                std::min(before->second.timings, next->second.timings)};
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

void pymtp_cost_table::put(int count, double seconds) {
    entries[count] = {seconds, 0.0};
}

void pymtp_first_extra::observe(double extra, double usual) {
    timings += 1.0;
    const double limited = std::min(std::max(extra, 0.0), 3 * mean + CLIP * usual);
    mean += std::max(LEAST_GAIN, 1 / (SEED_TIMINGS + timings)) * (limited - mean);
}

void pymtp_first_extra::seed(double extra) {
    timings += 1.0;
    mean += (std::max(extra, 0.0) - mean) / timings;
}

void pymtp_cost_table::age() {
    for (auto & [count, e] : entries) {
        e.timings *= AGE;
    }
}

void pymtp_cost_table::rescale(double factor) {
    for (auto & [count, e] : entries) {
        e.seconds *= factor;
        e.timings = std::min(e.timings, 1.0);
    }
}

static bool is_time(double seconds) {
    return seconds > 0.0 && std::isfinite(seconds);
}

void pymtp_costs::observe(int n_seqs, int drafted, double draft_took, int verified, double verify_took) {
    const int  rows       = n_seqs * (1 + verified);
    const bool same_rows  = rows == last_seqs * (1 + last_verified);
    const bool same_chain = n_seqs == last_seqs && drafted == last_drafted;
    const bool catches_up = last_drafted == 0;
    last_seqs     = n_seqs;
    last_drafted  = drafted;
    last_verified = verified;
    if (!is_time(verify_took)) {
        return;
    }
    if (n_doubted > 0 && same_rows && verify.has(rows)) {
        const double factor = verify_took / verify_seconds(n_seqs, verified);
        const bool   first  = n_doubted-- == KNOWN;
        if (first || factor < 1) { // a busy machine may have disturbed the first timing: it only makes them longer
            verify.rescale(factor);
            for (auto & [n, table] : chains) {
                table.rescale(factor);
            }
        }
    }
    verify.age();
    double error = 0.0;
    const double usual_verify = verify.has(rows) ? verify.at(rows).seconds : 0.0;
    if (same_rows || usual_verify == 0.0 || verify_took / pace < usual_verify) {
        error = verify.observe(rows, verify_took, pace);
    } else {
        verify_change.observe(verify_took / pace - usual_verify, usual_verify);
    }
    if (drafted > 0 && is_time(draft_took)) {
        const double usual = draft_seconds(n_seqs, drafted) / pace;
        if (same_chain || draft_took / pace < usual) {
            chains[n_seqs].observe(drafted, draft_took, pace);
        } else {
            (catches_up ? catch_up : draft_change).observe(draft_took / pace - usual, usual);
        }
    }
    pace = std::exp(PACE_KEPT * std::log(pace) + PACE_GAIN * error);
    is_known |= verify.at(rows).timings >= SEED_TIMINGS - 1;
}

void pymtp_costs::observe_verify(int n_seqs, int verified, double verify_took) {
    const int  rows      = n_seqs * (1 + verified);
    const bool same_rows = rows == last_seqs * (1 + last_verified);
    last_seqs     = n_seqs;
    last_drafted  = 0;
    last_verified = verified;
    if (!is_time(verify_took) || verify.empty()) {
        return;
    }
    verify.age();
    if (verify.has(rows) || rows < verify.max_count()) {
        // the first of several equal ones takes longer, and would make drafts of the head look dear
        if (same_rows || !verify.has(rows) || verify_took / pace < verify.at(rows).seconds) {
            verify.observe(rows, verify_took, pace);
        }
    } else {
        // The first run of a size builds a graph; but a row takes no longer than it does in a smaller verification.
        const int most = verify.max_count();
        verify.put(rows, std::min(verify_took / pace, verify.at(most).seconds * rows / most));
    }
}

void pymtp_costs::seed(int n_seqs, int drafted, const round_seconds & timed) {
    verify.seed(n_seqs * (1 + drafted), timed.verify / pace);
    verify_change.seed(timed.verify_first / pace);
    is_known = true;
    if (drafted > 0) {
        chains[n_seqs].seed(drafted, timed.draft / pace);
        draft_change.seed(timed.draft_first / pace);
        if (drafted == 1) {
            catch_up.seed(timed.draft_first / pace);
        }
    }
}

double pymtp_costs::change_seconds(int n_seqs, int drafted, int verified) const {
    double extra = 0.0;
    if (n_seqs * (1 + verified) != last_seqs * (1 + last_verified)) {
        extra += verify_change.seconds();
    }
    if (drafted > 0 && (n_seqs != last_seqs || drafted != last_drafted)) {
        extra += (last_drafted == 0 ? catch_up : draft_change).seconds();
    }
    return pace * extra;
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
