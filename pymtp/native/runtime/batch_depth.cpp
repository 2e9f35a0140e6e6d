#include "batch_depth.h"

#include "border.h"
#include "pymtp_depth.h"

#include <algorithm>
#include <cmath>

using namespace pymtp_tuning;

pymtp_batch_depth::pymtp_batch_depth(const pymtp_costs & single) : allowance(BATCH_ALLOWANCE), most_rows(MOST_TIMED) {
    costs.begin(single);
}

void pymtp_batch_depth::begin(int n, int drafted, double draft_seconds, double verify_seconds) {
    costs.begin(n, drafted, draft_seconds, verify_seconds);
    most_rows = std::max(most_rows, n * (1 + drafted));
}

// What is known of other texts tells less of new ones.
void pymtp_batch_depth::admit(int n, int opened) {
    peeks = std::min(MOST_PEEKS, peeks + NEW_TEXT * opened / n);
    if (!acceptance || opened >= n) {
        acceptance = acceptance ? pymtp_acceptance(&*acceptance) : pymtp_acceptance();
    } else if (opened > 0) {
        acceptance->observe(0, 0, {}, std::lround(std::log(1 - (double) opened / n) / std::log(DECAY)));
    }
}

// Of a round of all sequences, at each depth from 0, by how likely each draft is accepted.
static std::vector<double> expected_tokens(const std::vector<int> & rooms, const std::vector<double> & rates) {
    std::vector<double> tokens = {(double) rooms.size()};
    double together = 1.0;
    for (int i = 0; i < (int) rates.size(); ++i) {
        together *= rates[i];
        tokens.push_back(tokens.back() + together * std::count_if(rooms.begin(), rooms.end(), [&](int room) { return room > i; }));
    }
    return tokens;
}

int pymtp_batch_depth::choose(const std::vector<int> & rooms, int n_past, int top, int opened) {
    const int n = rooms.size();
    admit(n, opened);
    peeking = false;
    likely.clear();
    if (!costs.known()) {
        return last = 0;
    }
    costs.rounds(n, top, n_past, likely, least);
    if (stay && last <= top) {
        stay = false;
    } else {
        last = decide(rooms, top);
        stay = is_cold(n, last); // its first round tells nothing
    }
    if (last == 0 && top > 0) {
        const double step = costs.step_seconds(n, n_past) / likely[0];
        if (step <= peeks && promising(rooms, top)) {
            peeks  -= step;
            peeking = true;
            return 1;
        }
    }
    return last;
}

// The depth that looks best, or one to try.
int pymtp_batch_depth::decide(const std::vector<int> & rooms, int top) {
    const int n = rooms.size();
    const std::vector<double> tokens = expected_tokens(rooms, acceptance->rates(top));
    const std::vector<double> hoped  = expected_tokens(rooms, acceptance->rates(top, LUCK));

    // in plain rounds, of a round; of two where the first one is cold
    const auto loss = [&](int depth, double seconds) {
        const bool cold = is_cold(n, depth);
        return (1 + cold) * (seconds / likely[0] - tokens[depth] / n) + BUILD * cold * seconds / likely[0];
    };
    const auto allowed = [&](int depth) { // plain rounds at all costs: some depth must be had
        return depth == 0 || !is_cold(n, depth) || loss(depth, likely[depth]) <= allowance;
    };
    int found = 0;
    int trial = 0;
    for (int d = 1; d <= top; ++d) {
        if (allowed(d)) {
            found = tokens[d] * likely[found] > tokens[found] * likely[d] ? d : found;
            trial = hoped[d]  * least[trial]  > hoped[trial]  * least[d]  ? d : trial;
        }
    }
    if (best > top || !allowed(best) || tokens[found] * likely[best] > (1 + MARGIN) * tokens[best] * likely[found]) {
        best = found;
    }
    const bool worth = hoped[trial] * likely[best] > (1 + PROMISE) * tokens[best] * least[trial];
    if (worth && loss(trial, least[trial]) <= allowance) {
        return trial;
    }
    return allowance >= -DEBT ? best : 0;
}

// Whether drafting may well be worth it by now, if acceptance has become better.
bool pymtp_batch_depth::promising(const std::vector<int> & rooms, int top) const {
    const std::vector<double> tokens = expected_tokens(rooms, acceptance->rates(top, DOUBT));
    for (int d = 1; d <= top; ++d) {
        if (tokens[d] * likely[0] > tokens[0] * least[d]) {
            return true;
        }
    }
    return false;
}

void pymtp_batch_depth::observe(
        const std::vector<outcome> & outcomes, int n_past, int drafted, double draft_seconds, double verify_seconds) {
    const int  n        = outcomes.size();
    const int  verified = keep(drafted);
    const bool cold     = is_cold(n, verified);
    most_rows = std::max(most_rows, n * (1 + verified));
    costs.observe(n, n_past, drafted, draft_seconds, 1 + verified, verify_seconds, cold);

    acceptance->observe(0, 0, {}, /*tokens =*/ 1); // a round of many tells of many
    int came = 0;
    for (const outcome & o : outcomes) {
        came += o.came;
        if (drafted > 0) {
            acceptance->observe(o.told, o.right, {}, /*tokens =*/ 0);
            if (o.own) {
                o.own->observe_company(drafted, o.told, o.right);
            }
        }
    }
    double gain = 0.0;
    if (verified > 0 && !likely.empty()) {
        gain = (double) came / n - (1 + BUILD * cold) * likely[last] / likely[0];
    }
    allowance = std::min(EARNED, std::max(-DEBT, allowance + gain + EACH_ROUND));
    peeks     = std::min(MOST_PEEKS, peeks + PEEKS);
}

pymtp_batch_depth * pymtp_batch_depth_init(const pymtp_costs * single) {
    return pymtp_guarded<pymtp_batch_depth *>(nullptr, [&] { return new pymtp_batch_depth(*single); });
}

void pymtp_batch_depth_free(pymtp_batch_depth * depth) {
    delete depth;
}

void pymtp_batch_depth_forget(pymtp_batch_depth * depth) {
    pymtp_guarded([&] { depth->forget_costs(); });
}

void pymtp_batch_depth_begin(
        pymtp_batch_depth * depth, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && drafted >= 0, "a round has a sequence, and drafts are counted from zero");
        pymtp_require(verify_seconds > 0 && std::isfinite(verify_seconds), "a verification takes time");
        pymtp_require(drafted == 0 || (draft_seconds > 0 && std::isfinite(draft_seconds)), "a chain takes time");
        depth->begin(n_seqs, drafted, draft_seconds, verify_seconds);
    });
}

int32_t pymtp_batch_depth_choose(
        pymtp_batch_depth * depth, int32_t n_seqs, const int32_t * rooms, int32_t n_past, int32_t top, int32_t opened) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_seqs >= 1 && n_past >= 0 && top >= 0 && opened >= 0, "a round has a sequence; depths are counted from zero");
        return depth->choose({rooms, rooms + n_seqs}, n_past, top, opened);
    });
}

int32_t pymtp_batch_depth_keep(const pymtp_batch_depth * depth, int32_t made) {
    return depth->keep(made);
}

void pymtp_batch_depth_observe(
        pymtp_batch_depth * depth, int32_t n_seqs, pymtp_depth * const * own, const int32_t * told, const int32_t * right,
        const int32_t * came, int32_t n_past, int32_t drafted, double draft_seconds, double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && n_past >= 0 && drafted >= 0, "a round has a sequence, and drafts are counted from zero");
        std::vector<pymtp_batch_depth::outcome> outcomes;
        for (int32_t k = 0; k < n_seqs; ++k) {
            pymtp_require(right[k] >= 0 && right[k] <= told[k] && told[k] <= drafted, "no more drafts are right than were made");
            outcomes.push_back({own[k], told[k], right[k], came[k]});
        }
        depth->observe(outcomes, n_past, drafted, draft_seconds, verify_seconds);
    });
}
