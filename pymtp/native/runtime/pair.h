// A pair: a target context and a draft context of one model, the state of their sequences, and the rounds of both.
//
// The parts of a pair are the contexts (contexts.h), the sequences (sequence.h), the head's cache (head_sync.h), the
// draft vocabulary (draft_rows.h), and copies and saved states (state_store.h). pair.cpp drafts, verifies and rewinds,
// prefill.cpp processes prompts, memory.cpp sums up memory, and pair_api.cpp implements the C API. The files in
// compare/ serve only comparisons and tests.
#pragma once

#include "api_guard.h"
#include "contexts.h"
#include "draft_rows.h"
#include "head_sync.h"
#include "sequence.h"
#include "state_store.h"

#include <string>
#include <vector>

struct pymtp_pair {
    // Throws when llama.cpp makes no context.
    pymtp_pair(const pymtp_model & model, llama_context_params params, const pymtp_pair_options & options);

    pymtp_contexts &    contexts() { return ctxs; }
    pymtp_head_sync &   head()     { return head_sync; }
    pymtp_draft_rows &  vocab()    { return draft_rows; }
    pymtp_state_store & store()    { return state_store; }

    // Throws pymtp_failure when there is no such sequence, or when it needs a sampler and has none.
    pymtp_sequence & sequence(int32_t seq, bool needs_sampler = false);

    // Runs a function of the C API that works on n sequences, with the guarantees that pymtp_status documents. Returns
    // PYMTP_OK when `body` returns, and the status of a pymtp_failure. When the body fails or is cancelled, the
    // sequences are cleared, because the state of their caches and recurrent layers is unknown. When clearing fails as
    // well, the pair is marked as broken.
    template <typename F> int call(const int32_t * seqs, int32_t n, F && body) noexcept;

    // The functions below throw pymtp_failure; pymtp.h describes them. prefill returns the logits.

    const float * prefill(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
            const pymtp_rows_of_images & images, bool all);
    const float * embeddings() const { return prompt_embeddings.data(); }
    llama_token   first_token(int32_t seq);
    void draft_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
            float * confidences, pymtp_outcome * outcomes);
    // Processes n tokens of each sequence with the target. Afterwards all but the first of the n tokens can be rewound.
    // The sequences must be adjacent.
    // samples: the jobs that sample from the logits within the graph; null: the logits stay in the target context
    void verify(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
            pymtp_sample_batch * samples = nullptr);
    void verify_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
            llama_token * sampled, pymtp_outcome * outcomes);
    void rewind(int32_t seq, int32_t n_keep);
    void move(int32_t from, int32_t to);

private:
    pymtp_contexts              ctxs;
    std::vector<pymtp_sequence> sequences;
    pymtp_head_sync             head_sync;
    pymtp_draft_rows            draft_rows;
    pymtp_state_store           state_store;

    std::vector<float> logits;            // of the last prefill
    std::vector<float> prompt_embeddings; // of the last prefill, if options.embeddings is set

    // The reason why the pair cannot be used any more, or "" while it can. While there is a reason, every call is
    // refused.
    std::string broken;

    void draft_chains(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
            float * confidences, pymtp_outcome * outcomes);
    void clear_after_failure(const int32_t * seqs, int32_t n) noexcept;
    void mark_broken(const char * why) noexcept;
    int  report_broken() const noexcept;
};

template <typename F> int pymtp_pair::call(const int32_t * seqs, int32_t n, F && body) noexcept {
    const pymtp_call guard;
    pymtp_clear_errors();
    if (!broken.empty()) {
        return report_broken();
    }
    int status = PYMTP_OK;
    try {
        body();
    } catch (const pymtp_failure & failure) {
        status = failure.status;
        pymtp_store_error(failure.what());
    } catch (...) {
        status = PYMTP_FAILED;
        pymtp_store_exception();
    }
    if (!guard.assertion().empty()) {
        // Checked even if body() returned, because llama.cpp may have caught the exception. Its objects may be
        // inconsistent, so the sequences must not even be cleared.
        mark_broken(("an assertion of llama.cpp failed: " + guard.assertion()).c_str());
    } else if (status == PYMTP_FAILED || status == PYMTP_CANCELLED) {
        clear_after_failure(seqs, n);
    }
    return broken.empty() ? status : (int) PYMTP_BROKEN;
}
