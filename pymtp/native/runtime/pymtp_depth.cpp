#include "pymtp_depth.h"

#include "api_guard.h"
#include "depth.h"
#include "threads/team.h"

#include <algorithm>
#include <cmath>

pymtp_costs * pymtp_costs_init(void) {
    return pymtp_guarded<pymtp_costs *>(nullptr, [] { return new pymtp_costs; });
}

void pymtp_costs_free(pymtp_costs * costs) {
    delete costs;
}

void pymtp_costs_doubt(pymtp_costs * costs) {
    pymtp_guarded([&] { costs->doubt(); });
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

void pymtp_costs_seed(
        pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds,
        double draft_first, double verify_first) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && drafted >= 0, "a round has a sequence, and drafts are counted from zero");
        pymtp_require(std::isfinite(draft_first) && std::isfinite(verify_first), "extra seconds are finite");
        pymtp_require(verify_seconds > 0 && std::isfinite(verify_seconds), "a verification takes time");
        pymtp_require(drafted == 0 || (draft_seconds > 0 && std::isfinite(draft_seconds)), "a chain takes time");
        costs->seed(n_seqs, drafted, {draft_seconds, verify_seconds, draft_first, verify_first});
    });
}

void pymtp_costs_observe(
        pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, int32_t verified,
        double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && drafted >= 0 && verified >= 0,
                "a round has a sequence, and drafts are counted from zero");
        costs->observe(n_seqs, drafted, draft_seconds, verified, verify_seconds);
    });
}

bool pymtp_costs_rounds(const pymtp_costs * costs, int32_t n_seqs, int32_t max_depth, double * seconds) {
    return pymtp_guarded<bool>(false, [&] {
        pymtp_require(n_seqs >= 1 && max_depth >= 0, "a round has a sequence, and depths are counted from zero");
        if (!costs->known()) {
            return false;
        }
        const std::vector<double> estimates = costs->rounds(n_seqs, max_depth);
        std::copy(estimates.begin(), estimates.end(), seconds);
        return true;
    });
}

pymtp_acceptance * pymtp_acceptance_init(pymtp_acceptance * prior) {
    return pymtp_guarded<pymtp_acceptance *>(nullptr, [&] { return new pymtp_acceptance(prior); });
}

void pymtp_acceptance_free(pymtp_acceptance * acceptance) {
    delete acceptance;
}

void pymtp_acceptance_observe(
        pymtp_acceptance * acceptance, int32_t judged, int32_t correct, const double * unjudged, int32_t n_unjudged,
        int32_t tokens) {
    pymtp_guarded([&] {
        pymtp_require(correct >= 0 && correct <= judged && n_unjudged >= 0 && tokens >= 0,
                "drafts and tokens are counted from zero");
        acceptance->observe(judged, correct, {unjudged, unjudged + n_unjudged}, tokens);
    });
}

void pymtp_acceptance_rates(const pymtp_acceptance * acceptance, int32_t n, double * rates) {
    pymtp_guarded([&] {
        pymtp_require(n >= 0, "drafts are counted from zero");
        const std::vector<double> estimates = acceptance->rates(n);
        std::copy(estimates.begin(), estimates.end(), rates);
    });
}

pymtp_depth * pymtp_depth_init(pymtp_costs * costs) {
    return pymtp_guarded<pymtp_depth *>(nullptr, [&] { return new pymtp_depth(*costs); });
}

void pymtp_depth_free(pymtp_depth * depth) {
    delete depth;
}

int32_t pymtp_depth_choose(
        pymtp_depth * depth, int32_t n_seqs, pymtp_acceptance * const * sequences, const int32_t * limits,
        int32_t max_depth, int32_t n_idle) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_seqs >= 1 && n_idle >= 0, "a round has a sequence, and rounds are counted from zero");
        std::vector<pymtp_depth::sequence> all;
        for (int32_t k = 0; k < n_seqs; ++k) {
            all.push_back({sequences[k], limits[k]});
        }
        return depth->choose(all, max_depth, n_idle);
    });
}

int32_t pymtp_depth_idle_rounds(const pymtp_depth * depth) {
    return depth->idle_rounds();
}

int32_t pymtp_depth_n_to_verify(
        pymtp_depth * depth, int32_t n_seqs, pymtp_acceptance * const * sequences, int32_t n_drafts,
        const float * confidences) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_seqs >= 1 && n_drafts >= 0, "a round has a sequence, and drafts are counted from zero");
        return depth->n_to_verify({sequences, sequences + n_seqs}, n_drafts, confidences);
    });
}

void pymtp_depth_observe(
        pymtp_depth * depth, int32_t n_seqs, pymtp_acceptance * const * sequences, const int32_t * judged,
        const int32_t * correct, const int32_t * n_tokens, int32_t drafted, double draft_seconds, int32_t verified,
        double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && verified >= 0 && verified <= drafted,
                "a round has a sequence, and drafts are counted from zero");
        std::vector<pymtp_depth::outcome> outcomes;
        for (int32_t k = 0; k < n_seqs; ++k) {
            pymtp_require(correct[k] >= 0 && correct[k] <= judged[k] && judged[k] <= drafted,
                    "no more drafts are right than were made");
            pymtp_require(n_tokens[k] >= 0, "tokens are counted from zero");
            outcomes.push_back({sequences[k], judged[k], correct[k], n_tokens[k]});
        }
        depth->observe(outcomes, drafted, draft_seconds, verified, verify_seconds);
    });
}
