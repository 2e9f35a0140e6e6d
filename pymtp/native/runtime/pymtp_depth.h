// What Python calls to choose depths: how many drafts a round. The model has no part in it.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// What rounds cost, in seconds: learnt from them, for one model in one context on one machine.
struct pymtp_costs;
PYMTP_API struct pymtp_costs * pymtp_costs_init(void); // NULL: no memory; and so below
PYMTP_API void pymtp_costs_free(struct pymtp_costs * costs);

// Forgets the costs of rounds: with another number of threads, which other programs may bring about, they are others.
PYMTP_API void     pymtp_costs_forget(struct pymtp_costs * costs);
PYMTP_API void     pymtp_watch_quota(const char * folder); // of a control group that may have a bound on processor time
PYMTP_API uint32_t pymtp_thread_changes(void); // how often that was so far
PYMTP_API uint32_t pymtp_thread_trials(void);  // graphs of this thread that another number was tried with so far

// A chain of `drafted` steps and a verification of so many rows, after n_past tokens. run: rounds of as many
// right before.
PYMTP_API void pymtp_costs_observe(
        struct pymtp_costs * costs, int32_t n_past, int32_t drafted, double draft_seconds, int32_t rows,
        double verify_seconds, int32_t run);

// What was measured before the first round: a verification of so many rows, and a chain of n steps.
PYMTP_API void pymtp_costs_begin_verify(struct pymtp_costs * costs, int32_t rows, double seconds);
PYMTP_API void pymtp_costs_begin_draft(struct pymtp_costs * costs, int32_t n, double seconds);

// The estimates, once something was observed: of rounds at depths 0 to top, and the least that they may turn out.
PYMTP_API double pymtp_costs_verify(const struct pymtp_costs * costs, int32_t rows, int32_t n_past);
PYMTP_API double pymtp_costs_draft(const struct pymtp_costs * costs, int32_t n, int32_t n_past);
PYMTP_API void   pymtp_costs_rounds(
        struct pymtp_costs * costs, int32_t top, int32_t n_past, double * likely, double * least);

// The depth of each round of a sequence. costs must outlive it; after, an earlier sequence to go on from, may be NULL.
struct pymtp_depth;
PYMTP_API struct pymtp_depth * pymtp_depth_init(struct pymtp_costs * costs, int32_t most, const struct pymtp_depth * after);
PYMTP_API void pymtp_depth_free(struct pymtp_depth * depth);

PYMTP_API int32_t pymtp_depth_choose(struct pymtp_depth * depth, int32_t room, int32_t n_past);
PYMTP_API int32_t pymtp_depth_keep(const struct pymtp_depth * depth, const float * confidences, int32_t n);
PYMTP_API void    pymtp_depth_observe(
        struct pymtp_depth * depth, int32_t drafted, int32_t verified, int32_t right, double draft_seconds,
        double verify_seconds, const float * confidences, int32_t n_confidences);

// The depth of each round of several sequences; see batch_depth.h. It copies what `single` knows. own: of each sequence, the
// policy for it by itself, which hears of its drafts too, or NULL. told, right: of its drafts, those that the target told
// of, and those of them before the first wrong one. came: its tokens.
struct pymtp_batch_depth;
PYMTP_API struct pymtp_batch_depth * pymtp_batch_depth_init(const struct pymtp_costs * single);
PYMTP_API void    pymtp_batch_depth_free(struct pymtp_batch_depth * depth);
PYMTP_API void    pymtp_batch_depth_forget(struct pymtp_batch_depth * depth); // what rounds cost
PYMTP_API void    pymtp_batch_depth_begin( // a round that was timed before the first
        struct pymtp_batch_depth * depth, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds);
PYMTP_API int32_t pymtp_batch_depth_choose(
        struct pymtp_batch_depth * depth, int32_t n_seqs, const int32_t * rooms, int32_t n_past, int32_t top, int32_t opened);
PYMTP_API int32_t pymtp_batch_depth_keep(const struct pymtp_batch_depth * depth, int32_t made);
PYMTP_API void    pymtp_batch_depth_observe(
        struct pymtp_batch_depth * depth, int32_t n_seqs, struct pymtp_depth * const * own, const int32_t * told,
        const int32_t * right, const int32_t * came, int32_t n_past, int32_t drafted, double draft_seconds,
        double verify_seconds);

// For tests, their parts by themselves: costs of rounds of several, acceptance by position, the head's confidence and the
// tokens expected of a round.
struct pymtp_batch_costs;
PYMTP_API struct pymtp_batch_costs * pymtp_batch_costs_init(const struct pymtp_costs * single);
PYMTP_API void pymtp_batch_costs_free(struct pymtp_batch_costs * costs);
PYMTP_API void pymtp_batch_costs_observe(
        struct pymtp_batch_costs * costs, int32_t n_seqs, int32_t n_past, int32_t n, double draft_seconds, int32_t rows,
        double verify_seconds, bool cold);
PYMTP_API bool pymtp_batch_costs_rounds( // false: nothing is known yet
        struct pymtp_batch_costs * costs, int32_t n_seqs, int32_t top, int32_t n_past, double * likely, double * least);

struct pymtp_acceptance;
PYMTP_API struct pymtp_acceptance * pymtp_acceptance_init(const struct pymtp_acceptance * after);
PYMTP_API void pymtp_acceptance_free(struct pymtp_acceptance * acceptance);
PYMTP_API void pymtp_acceptance_observe(
        struct pymtp_acceptance * acceptance, int32_t told, int32_t right, const double * untold, int32_t n_untold,
        int32_t tokens);
PYMTP_API void pymtp_acceptance_rates(
        const struct pymtp_acceptance * acceptance, int32_t n, double right, double * rates);
PYMTP_API void pymtp_depth_rates(const struct pymtp_depth * depth, int32_t n, double * rates); // of one sequence's drafts

struct pymtp_calibration;
PYMTP_API struct pymtp_calibration * pymtp_calibration_init(void);
PYMTP_API void   pymtp_calibration_free(struct pymtp_calibration * calibration);
PYMTP_API void   pymtp_calibration_observe(
        struct pymtp_calibration * calibration, double confidence, bool accepted);
PYMTP_API double pymtp_calibration_probability(
        const struct pymtp_calibration * calibration, double confidence, double expected);

PYMTP_API void pymtp_window_tokens(const double * rates, int32_t n, double * tokens); // 1 + n of them

#ifdef __cplusplus
}
#endif
