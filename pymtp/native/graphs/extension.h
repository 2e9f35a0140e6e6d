// The state that we attach to a llama_context. pymtp_context.h and pymtp_hooks.h declare the functions that use it.
#pragma once

#include "image_runs.h"
#include "pending_hidden.h"
#include "pymtp_context.h"
#include "reduced_output.h"
#include "replay.h"
#include "sample.h"

#include "llama-context.h"

#include <array>
#include <vector>

// llama_context and llama_kv_cache_context have this struct as a friend. So its methods are those that need their
// private members; other code of ours consists of functions.
struct pymtp_extension {
    explicit pymtp_extension(llama_context & ctx);

    // Returns the extension of a context. The first call attaches it.
    static pymtp_extension & get(llama_context * ctx);

    llama_context & ctx;

    llama_kv_cache *         kv     = nullptr;
    llama_memory_recurrent * states = nullptr; // null in a draft context, which has no recurrent layers
    bool kv_on_host = true;

    std::unique_ptr<pymtp_replay>         replay;         // null unless the recurrent layers can rewind
    std::unique_ptr<pymtp_reduced_output> reduced_output; // null: drafts use the whole vocabulary
    std::unique_ptr<pymtp_pending_hidden> pending_hidden; // null before the first fused sync

    // The draft context whose cache the graphs of this target context fill, and the cells there for the current ubatch.
    pymtp_extension *        draft = nullptr;
    llama_memory_context_ptr head_mctx;

    // Returns the images of a sequence; empty in a context without images.
    pymtp_images_of images_of;

    pymtp_graph_sampler sampler;

    pymtp_output_bytes bytes; // without the fields `samples` and `buffer`, which are counted elsewhere

    pymtp_graph_settings & settings() { return ctx.cparams.pymtp; }

    // Makes the next decode reserve the compute buffers anew, because a setting has changed that graphs depend on.
    void need_reserve() { ctx.sched_need_reserve = true; }

    // Returns whether the abort callback asks to end the current call.
    bool abort_requested() const;

    // ── decode.cpp ──

    int  decode(const llama_batch & batch, uint32_t slot);
    void reserve();

    // Prepares the extension for a ubatch. llama.cpp calls it before each ubatch. Returns false when the memory cannot
    // be applied.
    bool apply(const llama_ubatch & ubatch, llama_memory_context_i & mctx);

    // Returns the K/V cells of a ubatch, of which n_kv may be set.
    static llama_kv_cache_context & cells_of(llama_memory_context_i & mctx);

    // Finds cells in the draft context's cache for the tokens of the ubatch.
    void find_head_cells(const llama_ubatch & ubatch);

    // ── graph_slots.cpp ──

    // A graph with its scheduler. While a batch of the slot is decoded, the fields are swapped with the members of the
    // same names in llama_context.
    struct graph_slot {
        ggml_backend_sched_ptr sched;

        std::array<llm_graph_result_ptr, 2> gf_res_prev;

        llm_graph_result * gf_res_prev_active = nullptr;

        uint32_t max_nodes = 0;
        uint32_t n_tokens  = 0;
    };

    std::vector<graph_slot> slots; // slots[i - 1] is slot i, because slot 0 is the graph that llama.cpp itself keeps
    uint32_t                last_slot = 0;

    // n_steps: number of tokens of each sequence
    void prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs);
    void swap_slot(graph_slot & slot);

    // ── memory_use.cpp ──

    pymtp_bytes_by_buffer compute_bytes() const;
    pymtp_bytes_by_buffer planned_compute(int32_t n_seqs, int32_t n);
    int64_t output_buffer_bytes() const;
};

// Throws when the sequence is not empty, or when another sequence occupies the recurrent cell with its number.
void pymtp_require_empty(const pymtp_extension & ext, llama_seq_id seq);
