// Keeps the head's cache up to date with the target. Without a draft context, the functions do nothing.
//
// In the fused mode, the hidden states that the head has yet to process ("pending" ones) stay on the device. Otherwise
// they pass through the host (compare/host_hidden.h).
#pragma once

#include "compare/host_hidden.h"
#include "contexts.h"
#include "sequence.h"

#include <vector>

// While an object of this class lives, the draft context reads the hidden states that are pending in the target
// context.
class pymtp_pending_hidden_scope {
public:
    explicit pymtp_pending_hidden_scope(pymtp_contexts & contexts);
    ~pymtp_pending_hidden_scope();

private:
    llama_context * draft;
};

class pymtp_head_sync {
public:
    pymtp_head_sync(pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences);

    // Must be called before and after the target processes tokens of prompts, or of a verification of n tokens of each
    // sequence. offset: index in the batch of the first of the n tokens
    void begin_prefill(int32_t seq);
    void end_prefill(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset);
    void begin_verify(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n);
    void end_verify(int32_t seq, const llama_token * tokens, int32_t n);

    // Must be called after a sequence was rewound.
    void rewind(int32_t seq);

    // Lets the head process all tokens that it lags behind the target, and moves hidden states on the host to the
    // device. Afterwards the target's graph can continue to fill the head's cache.
    void catch_up(int32_t n_seqs, const int32_t * seqs);

    // Lets the head process the tokens whose hidden states are pending on the device. Adjacent sequences with the same
    // number of such tokens share a decode.
    void flush(int32_t n_seqs, const int32_t * seqs);

    // Discards the drafts of a sequence that were not verified.
    void discard_drafts(int32_t seq);

    // Removes the rows of the head's cache that were computed from the head's own hidden states. Rows computed from the
    // target's hidden states will replace them.
    void truncate(int32_t seq);

    // Empties the head's cache of a sequence. Staged cells are left unchanged.
    void clear(int32_t seq);

    // Records that the head's logits for a sequence were not finite. Its cells may hold NaN, and so may all cells that
    // are staged later, because they may have been saved before.
    void mark_nan(int32_t seq) { sequences[seq].head_has_nan = saw_nan = true; }
    // Must be called after cells of a sequence were staged.
    void end_stage(int32_t seq) { sequences[seq].head_has_nan |= saw_nan; }

    // Prepares a sequence for saving: discards drafts, and lets the head process all tokens that it lags behind, so
    // that only the hidden state of the last token remains pending. Hidden states of earlier tokens may be overwritten,
    // so nothing can be rewound afterwards.
    void prepare_save(int32_t seq);

    // Read and write the hidden state, of n_embd floats, that the next token of a sequence is combined with.
    void read_row(int32_t seq, float * row);
    void write_row(int32_t seq, const float * row);

    // Returns null without a draft context.
    pymtp_host_hidden * host() { return contexts.draft ? &host_hidden : nullptr; }

private:
    pymtp_contexts &              contexts;
    std::vector<pymtp_sequence> & sequences;
    pymtp_host_hidden             host_hidden;
    bool                          saw_nan = false;

    void zero_cells(int32_t seq);
};
