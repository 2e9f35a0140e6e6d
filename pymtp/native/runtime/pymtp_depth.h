// The C API for choosing the depth, which is the number of tokens to draft per sequence in a round. It needs no model.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// The estimated seconds of rounds, learnt from rounds of one model in one context on one machine. The functions named
// *_init return NULL when there is no memory.
struct pymtp_costs;
PYMTP_API struct pymtp_costs * pymtp_costs_init(void);
PYMTP_API void pymtp_costs_free(struct pymtp_costs * costs);

// Discards all costs. Needed after the number of threads has changed, because the seconds of rounds then differ.
PYMTP_API void     pymtp_costs_reset(struct pymtp_costs * costs);
// Sets the folder of the control group whose limit of processor time is watched.
PYMTP_API void     pymtp_watch_cpu_quota(const char * folder);
PYMTP_API uint32_t pymtp_thread_count_changes(void); // returns how often the number of threads has changed so far
// Returns how many graphs of this thread have tried another number of threads so far.
PYMTP_API uint32_t pymtp_thread_count_trials(void);

// Records a chain of `drafted` steps and a verification of `rows` rows, after n_past tokens. repeats: number of rounds
// with the same `drafted` and `rows` directly before this one
PYMTP_API void pymtp_costs_observe(
        struct pymtp_costs * costs, int32_t n_past, int32_t drafted, double draft_seconds, int32_t rows,
        double verify_seconds, int32_t repeats);

// Record the seconds of a verification of `rows` rows, and of a chain of n steps, that were timed before the first
// round.
PYMTP_API void pymtp_costs_seed_verify(struct pymtp_costs * costs, int32_t rows, double seconds);
PYMTP_API void pymtp_costs_seed_draft(struct pymtp_costs * costs, int32_t n, double seconds);

// Return estimated seconds, after something was recorded: of a verification of `rows` rows, of a chain of n steps, and
// of a round at each depth from 0 to max_depth (expected and optimistic).
PYMTP_API double pymtp_costs_verify(const struct pymtp_costs * costs, int32_t rows, int32_t n_past);
PYMTP_API double pymtp_costs_draft(const struct pymtp_costs * costs, int32_t n, int32_t n_past);
PYMTP_API void   pymtp_costs_rounds(
        struct pymtp_costs * costs, int32_t max_depth, int32_t n_past, double * expected, double * optimistic);

// The policy that chooses the depth of rounds of one sequence, see depth.h. `costs` must outlive the policy.
// previous: the policy of an earlier sequence to start from, or NULL
struct pymtp_depth;
PYMTP_API struct pymtp_depth * pymtp_depth_init(struct pymtp_costs * costs, int32_t max_depth,
        const struct pymtp_depth * previous);
PYMTP_API void pymtp_depth_free(struct pymtp_depth * depth);

PYMTP_API int32_t pymtp_depth_choose(struct pymtp_depth * depth, int32_t limit, int32_t n_past);
PYMTP_API int32_t pymtp_depth_n_to_verify(const struct pymtp_depth * depth, const float * confidences, int32_t n);
PYMTP_API void    pymtp_depth_observe(
        struct pymtp_depth * depth, int32_t drafted, int32_t verified, int32_t correct, double draft_seconds,
        double verify_seconds, const float * confidences, int32_t n_confidences);

// The policy that chooses the depth of rounds of several sequences, see batch_depth.h.
// single: the costs of rounds of one sequence, from which the policy's first estimates are copied.
// own: for each sequence, its policy for rounds of that sequence alone, which learns from the drafts as well; NULL:
// none.
// judged, correct: for each sequence, the number of drafts that the target judged, and of judged drafts before the
// first wrong one.
// n_tokens: for each sequence, the number of tokens that the round produced
struct pymtp_batch_depth;
PYMTP_API struct pymtp_batch_depth * pymtp_batch_depth_init(const struct pymtp_costs * single);
PYMTP_API void    pymtp_batch_depth_free(struct pymtp_batch_depth * depth);
PYMTP_API void    pymtp_batch_depth_reset_costs(struct pymtp_batch_depth * depth); // discards the costs of rounds
PYMTP_API void    pymtp_batch_depth_seed( // records a round that was timed before the first real round
        struct pymtp_batch_depth * depth, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds);
PYMTP_API int32_t pymtp_batch_depth_choose(
        struct pymtp_batch_depth * depth, int32_t n_seqs, const int32_t * limits, int32_t n_past, int32_t max_depth,
        int32_t n_new);
PYMTP_API int32_t pymtp_batch_depth_n_to_verify(const struct pymtp_batch_depth * depth, int32_t n_drafts);
PYMTP_API void    pymtp_batch_depth_observe(
        struct pymtp_batch_depth * depth, int32_t n_seqs, struct pymtp_depth * const * own, const int32_t * judged,
        const int32_t * correct, const int32_t * n_tokens, int32_t n_past, int32_t drafted, double draft_seconds,
        double verify_seconds);

// The following functions give tests access to parts of the policies: the costs of rounds of several sequences, the
// acceptance by position, the calibration of the head's confidence, and the expected tokens of a round.
struct pymtp_batch_costs;
PYMTP_API struct pymtp_batch_costs * pymtp_batch_costs_init(const struct pymtp_costs * single);
PYMTP_API void pymtp_batch_costs_free(struct pymtp_batch_costs * costs);
PYMTP_API void pymtp_batch_costs_observe(
        struct pymtp_batch_costs * costs, int32_t n_seqs, int32_t n_past, int32_t n, double draft_seconds, int32_t rows,
        double verify_seconds, bool cold);
PYMTP_API bool pymtp_batch_costs_rounds( // returns false, and writes nothing, before the first timing
        struct pymtp_batch_costs * costs, int32_t n_seqs, int32_t max_depth, int32_t n_past, double * expected,
        double * optimistic);

struct pymtp_acceptance;
PYMTP_API struct pymtp_acceptance * pymtp_acceptance_init(const struct pymtp_acceptance * previous);
PYMTP_API void pymtp_acceptance_free(struct pymtp_acceptance * acceptance);
PYMTP_API void pymtp_acceptance_observe(
        struct pymtp_acceptance * acceptance, int32_t judged, int32_t correct, const double * unjudged,
        int32_t n_unjudged, int32_t tokens);
PYMTP_API void pymtp_acceptance_rates(
        const struct pymtp_acceptance * acceptance, int32_t n, double imagined, double * rates);
// Writes the acceptance of the first n positions to `rates`.
PYMTP_API void pymtp_depth_rates(const struct pymtp_depth * depth, int32_t n, double * rates);

struct pymtp_calibration;
PYMTP_API struct pymtp_calibration * pymtp_calibration_init(void);
PYMTP_API void   pymtp_calibration_free(struct pymtp_calibration * calibration);
PYMTP_API void   pymtp_calibration_observe(
        struct pymtp_calibration * calibration, double confidence, bool accepted);
PYMTP_API double pymtp_calibration_probability(
        const struct pymtp_calibration * calibration, double confidence, double expected);

// Writes the expected tokens of rounds at depths 0 to n to `tokens`.
PYMTP_API void pymtp_expected_round_tokens(const double * rates, int32_t n, double * tokens);

#ifdef __cplusplus
}
#endif
