#include "batch_depth.h"

#include "api_guard.h"
#include "pymtp_depth.h"

#include <algorithm>
#include <cmath>

using namespace pymtp_tuning;

pymtp_batch_depth::pymtp_batch_depth(const pymtp_costs & single) : budget(BATCH_ALLOWANCE), max_rows(MOST_TIMED) {
    costs.seed(single);
}

void pymtp_batch_depth::seed(int n, int drafted, double draft_seconds, double verify_seconds) {
    costs.seed(n, drafted, draft_seconds, verify_seconds);
    max_rows = std::max(max_rows, n * (1 + drafted));
}

// Prepares for a round of n sequences, n_new of which are new. Reduces the weight of the acceptance observed so far,
// because it says little about new texts, and raises the budget for peeks.
void pymtp_batch_depth::add_sequences(int n, int n_new) {
    peek_budget = std::min(MOST_PEEKS, peek_budget + NEW_TEXT * n_new / n);
    if (!acceptance || n_new >= n) {
        acceptance = acceptance ? pymtp_acceptance(&*acceptance) : pymtp_acceptance();
    } else if (n_new > 0) {
        acceptance->observe(0, 0, {}, std::lround(std::log(1 - (double) n_new / n) / std::log(DECAY)));
    }
}

// Returns for each depth from 0 the expected number of tokens of a round of all sequences.
// limits: for each sequence, the most drafts that it can use.
// rates: for each draft of a chain, the probability that it is accepted, given that all earlier ones were
static std::vector<double> expected_tokens(const std::vector<int> & limits, const std::vector<double> & rates) {
    std::vector<double> tokens = {(double) limits.size()};
    double all_accepted = 1.0;
    for (int i = 0; i < (int) rates.size(); ++i) {
        all_accepted *= rates[i];
        const auto n_drafting = std::count_if(limits.begin(), limits.end(), [&](int limit) { return limit > i; });
        tokens.push_back(tokens.back() + all_accepted * n_drafting);
    }
    return tokens;
}

int pymtp_batch_depth::choose(const std::vector<int> & limits, int n_past, int max_depth, int n_new) {
    const int n = limits.size();
    add_sequences(n, n_new);
    is_peek = false;
    expected.clear();
    if (!costs.known()) {
        return depth = 0;
    }
    costs.rounds(n, max_depth, n_past, expected, optimistic);
    if (repeat_depth && depth <= max_depth) {
        repeat_depth = false;
    } else {
        depth = decide(limits, max_depth);
        repeat_depth = is_cold(n, depth); // a cold round's timing is useless, so the next round repeats the depth
    }
    if (depth == 0 && max_depth > 0) {
        const double step = costs.step_seconds(n, n_past) / expected[0];
        if (step <= peek_budget && may_pay_off(limits, max_depth)) {
            peek_budget  -= step;
            is_peek = true;
            return 1;
        }
    }
    return depth;
}

// Returns the depth for the next round: the one that looks best, or a promising one to try. Also updates `best`.
int pymtp_batch_depth::decide(const std::vector<int> & limits, int max_depth) {
    const int n = limits.size();
    const std::vector<double> tokens = expected_tokens(limits, acceptance->rates(max_depth));
    const std::vector<double> optimistic_tokens = expected_tokens(limits, acceptance->rates(max_depth, LUCK));

    // Returns how much time a trial of the depth loses against plain decoding, in plain rounds. A cold round is
    // repeated, so the trial of a cold depth takes two rounds.
    const auto loss = [&](int depth, double seconds) {
        const bool cold = is_cold(n, depth);
        return (1 + cold) * (seconds / expected[0] - tokens[depth] / n) + BUILD * cold * seconds / expected[0];
    };
    const auto allowed = [&](int depth) { // depth 0 is always allowed, so that there is at least one depth to choose
        return depth == 0 || !is_cold(n, depth) || loss(depth, expected[depth]) <= budget;
    };
    int best_now = 0;
    int trial = 0;
    for (int d = 1; d <= max_depth; ++d) {
        if (allowed(d)) {
            best_now = tokens[d] * expected[best_now] > tokens[best_now] * expected[d] ? d : best_now;
            trial = optimistic_tokens[d]  * optimistic[trial]  > optimistic_tokens[trial]  * optimistic[d]  ? d : trial;
        }
    }
    if (best > max_depth || !allowed(best) ||
            tokens[best_now] * expected[best] > (1 + MARGIN) * tokens[best] * expected[best_now]) {
        best = best_now;
    }
    const bool worth = optimistic_tokens[trial] * expected[best] > (1 + PROMISE) * tokens[best] * optimistic[trial];
    if (worth && loss(trial, optimistic[trial]) <= budget) {
        return trial;
    }
    return budget >= -DEBT ? best : 0;
}

// Returns whether drafting may pay off if acceptance has improved since drafts were last made.
bool pymtp_batch_depth::may_pay_off(const std::vector<int> & limits, int max_depth) const {
    const std::vector<double> tokens = expected_tokens(limits, acceptance->rates(max_depth, DOUBT));
    for (int d = 1; d <= max_depth; ++d) {
        if (tokens[d] * expected[0] > tokens[0] * optimistic[d]) {
            return true;
        }
    }
    return false;
}

void pymtp_batch_depth::observe(
        const std::vector<outcome> & outcomes, int n_past, int drafted, double draft_seconds, double verify_seconds) {
    const int  n        = outcomes.size();
    const int  verified = n_to_verify(drafted);
    const bool cold     = is_cold(n, verified);
    max_rows = std::max(max_rows, n * (1 + verified));
    costs.observe(n, n_past, drafted, draft_seconds, 1 + verified, verify_seconds, cold);

    acceptance->observe(0, 0, {}, /*tokens =*/ 1); // fades once per round, not once per sequence
    int n_tokens = 0;
    for (const outcome & o : outcomes) {
        n_tokens += o.n_tokens;
        if (drafted > 0) {
            acceptance->observe(o.judged, o.correct, {}, /*tokens =*/ 0);
            if (o.own) {
                o.own->observe_in_batch(drafted, o.judged, o.correct);
            }
        }
    }
    double gain = 0.0;
    if (verified > 0 && !expected.empty()) {
        gain = (double) n_tokens / n - (1 + BUILD * cold) * expected[depth] / expected[0];
    }
    budget      = std::min(EARNED, std::max(-DEBT, budget + gain + EACH_ROUND));
    peek_budget = std::min(MOST_PEEKS, peek_budget + PEEKS);
}

pymtp_batch_depth * pymtp_batch_depth_init(const pymtp_costs * single) {
    return pymtp_guarded<pymtp_batch_depth *>(nullptr, [&] { return new pymtp_batch_depth(*single); });
}

void pymtp_batch_depth_free(pymtp_batch_depth * depth) {
    delete depth;
}

void pymtp_batch_depth_reset_costs(pymtp_batch_depth * depth) {
    pymtp_guarded([&] { depth->reset_costs(); });
}

void pymtp_batch_depth_seed(
        pymtp_batch_depth * depth, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && drafted >= 0, "a round has a sequence, and drafts are counted from zero");
        pymtp_require(verify_seconds > 0 && std::isfinite(verify_seconds), "a verification takes time");
        pymtp_require(drafted == 0 || (draft_seconds > 0 && std::isfinite(draft_seconds)), "a chain takes time");
        depth->seed(n_seqs, drafted, draft_seconds, verify_seconds);
    });
}

int32_t pymtp_batch_depth_choose(
        pymtp_batch_depth * depth, int32_t n_seqs, const int32_t * limits, int32_t n_past, int32_t max_depth,
        int32_t n_new) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_seqs >= 1 && n_past >= 0 && max_depth >= 0 && n_new >= 0,
                "a round has a sequence; depths are counted from zero");
        return depth->choose({limits, limits + n_seqs}, n_past, max_depth, n_new);
    });
}

int32_t pymtp_batch_depth_n_to_verify(const pymtp_batch_depth * depth, int32_t n_drafts) {
    return depth->n_to_verify(n_drafts);
}

void pymtp_batch_depth_observe(
        pymtp_batch_depth * depth, int32_t n_seqs, pymtp_depth * const * own, const int32_t * judged,
        const int32_t * correct, const int32_t * n_tokens, int32_t n_past, int32_t drafted, double draft_seconds,
        double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && n_past >= 0 && drafted >= 0,
                "a round has a sequence, and drafts are counted from zero");
        std::vector<pymtp_batch_depth::outcome> outcomes;
        for (int32_t k = 0; k < n_seqs; ++k) {
            pymtp_require(correct[k] >= 0 && correct[k] <= judged[k] && judged[k] <= drafted,
                    "no more drafts are right than were made");
            outcomes.push_back({own[k], judged[k], correct[k], n_tokens[k]});
        }
        depth->observe(outcomes, n_past, drafted, draft_seconds, verify_seconds);
    });
}
