// The C API for choosing the depth, which is the number of tokens to draft per sequence in a round. It needs no model.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// The estimated seconds of rounds, learnt from rounds of one model in one context on one machine, see costs.h. The
// functions named *_init return NULL when there is no memory.
struct pymtp_costs;
PYMTP_API struct pymtp_costs * pymtp_costs_init(void);
PYMTP_API void pymtp_costs_free(struct pymtp_costs * costs);

// Lets the next rounds replace the costs. Needed after the number of threads has changed, because rounds then take
// another time.
PYMTP_API void     pymtp_costs_doubt(struct pymtp_costs * costs);
// Sets the folder of the control group whose limit of processor time is watched.
PYMTP_API void     pymtp_watch_cpu_quota(const char * folder);
PYMTP_API uint32_t pymtp_thread_count_changes(void); // returns how often the number of threads has changed so far
// Returns how many graphs of this thread have tried another number of threads so far.
PYMTP_API uint32_t pymtp_thread_count_trials(void);

// Records rounds of n_seqs sequences that were timed before the first real round: a chain of `drafted` steps, and a
// verification of 1 + drafted rows of each sequence. draft_first, verify_first: the extra seconds in the first of
// several such rounds in a row
PYMTP_API void pymtp_costs_seed(
        struct pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds,
        double draft_first, double verify_first);
// Records a real round, whose verification had 1 + verified rows of each sequence.
PYMTP_API void pymtp_costs_observe(
        struct pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, int32_t verified,
        double verify_seconds);
// Writes the estimated seconds of a round at each depth from 0 to max_depth. Returns false, and writes nothing, before
// the first timing.
PYMTP_API bool pymtp_costs_rounds(
        const struct pymtp_costs * costs, int32_t n_seqs, int32_t max_depth, double * seconds);

// The memory of accepted drafts, see acceptance.h: of a sequence, or the prior of several ones (prior: NULL). The prior
// must outlive its sequences.
struct pymtp_acceptance;
PYMTP_API struct pymtp_acceptance * pymtp_acceptance_init(struct pymtp_acceptance * prior);
PYMTP_API void pymtp_acceptance_free(struct pymtp_acceptance * acceptance);
// unjudged: the probabilities of drafts that the target did not judge.
PYMTP_API void pymtp_acceptance_observe(
        struct pymtp_acceptance * acceptance, int32_t judged, int32_t correct, const double * unjudged,
        int32_t n_unjudged, int32_t tokens);
// Writes the estimated acceptance of the first n drafts of a chain, each given that the earlier ones were accepted.
PYMTP_API void pymtp_acceptance_rates(const struct pymtp_acceptance * acceptance, int32_t n, double * rates);

// The policy that chooses the depth, see depth.h. `costs` must outlive the policy. The arrays have one item for each of
// the n_seqs sequences of the round.
struct pymtp_depth;
PYMTP_API struct pymtp_depth * pymtp_depth_init(struct pymtp_costs * costs);
PYMTP_API void    pymtp_depth_free(struct pymtp_depth * depth);
// limits: the most drafts that the sequence can use.
// n_idle: number of rounds since the last call of pymtp_depth_observe that nothing was asked about
PYMTP_API int32_t pymtp_depth_choose(
        struct pymtp_depth * depth, int32_t n_seqs, struct pymtp_acceptance * const * sequences,
        const int32_t * limits, int32_t max_depth, int32_t n_idle);
// Returns for how many of the next rounds of the same sequences nothing need be asked or told: they make no drafts.
PYMTP_API int32_t pymtp_depth_idle_rounds(const struct pymtp_depth * depth);
// confidences: the head's probability of each draft just made, n_drafts for each sequence.
PYMTP_API int32_t pymtp_depth_n_to_verify(
        struct pymtp_depth * depth, int32_t n_seqs, struct pymtp_acceptance * const * sequences, int32_t n_drafts,
        const float * confidences);
// judged, correct: the number of drafts that the target judged, and of judged drafts before the first wrong one.
// n_tokens: the number of tokens that the round produced for the sequence
PYMTP_API void    pymtp_depth_observe(
        struct pymtp_depth * depth, int32_t n_seqs, struct pymtp_acceptance * const * sequences,
        const int32_t * judged, const int32_t * correct, const int32_t * n_tokens, int32_t drafted,
        double draft_seconds, int32_t verified, double verify_seconds);

#ifdef __cplusplus
}
#endif
