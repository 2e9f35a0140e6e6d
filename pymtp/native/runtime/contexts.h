// The target and the draft context of a pair, and the decodes of both.
#pragma once

#include "batch.h"
#include "compare/pymtp_compare.h"
#include "compare/trace.h"
#include "graph_slots.h"
#include "images.h"
#include "pymtp.h"

#include "ggml-cpu.h"
#include "llama.h"
#include "op_times.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

class pymtp_sequence;
struct pymtp_model;
struct pymtp_sample_batch;

struct pymtp_context_deleter {
    void operator()(llama_context * ctx) const { llama_free(ctx); }
};
using pymtp_context_ptr = std::unique_ptr<llama_context, pymtp_context_deleter>;

struct pymtp_threads_deleter {
    void operator()(ggml_threadpool * threads) const { ggml_threadpool_free(threads); }
};

// Bytes that llama.cpp (llama_kv_cells) uses for each cell of a context beside K and V.
extern const int64_t pymtp_cell_metadata_bytes;

constexpr int32_t PYMTP_MAX_DRAFTS   = 64; // largest number of drafts per sequence in a round
// largest number of tokens that the head may lag behind the target, see pymtp_set_fused_sync
constexpr int32_t PYMTP_MAX_HEAD_LAG = 63;

// The functions that check arguments throw pymtp_failure.
struct pymtp_contexts {
    // Throws when llama.cpp makes no context.
    pymtp_contexts(const pymtp_model & model, llama_context_params params, const pymtp_pair_options & options);
    pymtp_contexts(const pymtp_contexts &) = delete; // callbacks of the contexts hold its address
    pymtp_contexts & operator=(const pymtp_contexts &) = delete;

    const std::shared_ptr<llama_model> model; // the first member, so that it is destroyed last
    const pymtp_pair_options           options;

    std::unique_ptr<pymtp_trace>     trace;    // null unless asked for
    std::unique_ptr<pymtp::op_times> op_times; // null unless asked for

    // The thread pool that the graphs of both contexts share; without it, ggml would make and free a pool for each
    // graph. The threads themselves belong to the whole process (kernels/threads/team.h).
    std::unique_ptr<ggml_threadpool, pymtp_threads_deleter> threads;

    pymtp_context_ptr target;
    pymtp_context_ptr draft; // null without drafts

    const int32_t n_vocab;
    const int32_t n_embd;
    const bool    has_mrope; // whether the model has positions of images
    int32_t n_ctx         = 0; // number of tokens that fit in one sequence
    int32_t n_batch       = 0;
    int32_t n_outputs     = 0; // largest number of rows of logits in a batch
    int32_t max_head_rows = 0; // largest number of rows that the draft context processes at once

    // largest number of candidates that a graph may pick from a row of logits, see pymtp_max_candidates
    const size_t max_candidates;

    pymtp_fault       fault = PYMTP_FAULT_NONE;
    std::atomic<bool> cancelled{false};
    pymtp_counters    counters = {};

    pymtp_batch batch;

    pymtp_images images;

    // Returns whether the target's graph fills the head's cache. With PYMTP_FAULT_SHIFTED_ROWS it does not, because
    // that fault shifts rows on the host.
    bool is_fused() const;
    // Returns whether several sequences may share a decode.
    bool can_batch() const { return is_fused() || !draft; }
    // Returns whether every token of a prompt is an output with embeddings.
    bool embeds_prompts() const {
        return options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    }
    // Returns the largest number of drafts of a sequence in a verification.
    int32_t max_drafts() const { return std::max(options.n_draft, options.n_text); }
    // Returns the largest number of rows in a verification, of all sequences together.
    int32_t max_verify_rows() const;

    void check_seq(int32_t seq) const;
    void check_seqs(int32_t n_seqs, const int32_t * seqs) const;
    // Checks n tokens of text, which no image may be among, or tokens of a prompt that follow a sequence.
    void check_tokens(const llama_token * tokens, int32_t n) const;
    void check_prompt(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const;
    void check_room(const pymtp_sequence & s, int32_t n) const;
    void check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const;

    // Makes an image known. Throws pymtp_failure where images cannot be processed, and see pymtp_images.
    void add_image(llama_token token, int32_t nx, int32_t ny);
    // Makes the positions of tokens depend on images. images_of: see pymtp_set_images
    void watch_images(const pymtp_images_of & images_of);

    // Reserves the compute buffers of both contexts anew if settings have changed since they were reserved.
    void reserve();

    // Sets up the contexts for a prompt, or for a round in the fused mode.
    void begin_prefill();
    // Sets up the contexts for a round in which hidden states pass through the host.
    void begin_host_round();

    // Decodes the batch, and reuses the graph that is stored under the index `slot`. Throws pymtp_failure; the state of
    // the batch's sequences is then unknown.
    void decode(llama_context * ctx, uint32_t slot = 0);
    // Decodes the batch with a graph that also samples, and stores the samples in the jobs of `samples`. The graph is
    // kept in a slot, because depths alternate from round to round.
    void decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples);

private:
    pymtp_graph_slots target_slots;
    pymtp_graph_slots draft_slots;

    void make_draft(llama_context_params params);
    void share_threads();
    void add_adapters(const pymtp_model & shared);
};
