// The C API for drafts from text: what followed where the end of a text occurred before. It needs no model.
#pragma once

#include "pymtp_depth.h"
#include "pymtp_text.h"

#ifdef __cplusplus
extern "C" {
#endif

// What is known of the guesses from all texts of an LLM, see guess_rates.h. The functions named *_init return NULL when
// there is no memory.
struct pymtp_guess_rates;
PYMTP_API struct pymtp_guess_rates * pymtp_guess_rates_init(void);
PYMTP_API void pymtp_guess_rates_free(struct pymtp_guess_rates * rates);

// The text of a request, and the guesses about its next tokens, see text_drafts.h. earlier: the outputs of earlier
// requests, or NULL. `rates` and `earlier` must outlive it.
struct pymtp_text_drafts;
PYMTP_API struct pymtp_text_drafts * pymtp_text_drafts_init(
        struct pymtp_guess_rates * rates, const struct pymtp_text * earlier);
PYMTP_API void pymtp_text_drafts_free(struct pymtp_text_drafts * drafts);
// Appends tokens of the prompt, and of the output before a restart. Returns 0, or -1 on failure.
PYMTP_API int32_t pymtp_text_drafts_add(struct pymtp_text_drafts * drafts, const llama_token * tokens, int32_t n);

// Limits for the drafts of a round.
struct pymtp_draft_limits {
    int32_t max_text; // drafts from text of a sequence
    int32_t max_head; // drafts of the head for a sequence
    int32_t room;     // rows in a decode, of all sequences together
};

// The drafts of a round, see text_choice.h.
struct pymtp_draft_choice {
    int32_t depth; // number of drafts of the head for each sequence that has none from text
    bool    split; // whether neighbours with drafts from text share a decode, and the others share other decodes
};

// Appends what each sequence generated since the last call, which judges the last guesses, and chooses the drafts of
// the next round. The arrays have one item for each of the n_seqs sequences, which must be in the order of their
// numbers.
// texts: NULL for no drafts from text.
// n_generated, generated: the number of generated tokens of each sequence; and these tokens, sequence by sequence.
// limits: the most drafts that the sequence can use.
// lengths, tokens: receive the number of drafts from text of each sequence; and these drafts, at an interval of
// max_text entries.
// Returns 1 if a sequence has any. Otherwise `choice` is not written, and pymtp_depth_choose should choose: returns 0,
// or -1 if there was no memory for the tokens of a text. The length of that text is -1 then, and the other lengths are
// 0; the text must not be used any more.
PYMTP_API int32_t pymtp_choose_text_drafts(
        const struct pymtp_costs * costs, int32_t n_seqs, struct pymtp_text_drafts * const * texts,
        struct pymtp_acceptance * const * acceptances, const int32_t * n_generated, const llama_token * generated,
        const int32_t * limits, const struct pymtp_draft_limits * round, int32_t * lengths, llama_token * tokens,
        struct pymtp_draft_choice * choice);

// Chooses drafts from text to verify after n_drafts drafts of the head, for a round of one sequence. Returns their
// number. confidences: the head's probability of each draft. tokens: receives them, at most max_text
PYMTP_API int32_t pymtp_extend_drafts(
        const struct pymtp_costs * costs, struct pymtp_text_drafts * text, struct pymtp_acceptance * acceptance,
        int32_t limit, const struct pymtp_draft_limits * round, const llama_token * drafts,
        const float * confidences, int32_t n_drafts, llama_token * tokens);

// Records a verification with drafts from text: of n_seqs sequences, with `verified` drafts of each.
PYMTP_API void pymtp_costs_observe_verify(
        struct pymtp_costs * costs, int32_t n_seqs, int32_t verified, double verify_seconds);

#ifdef __cplusplus
}
#endif
