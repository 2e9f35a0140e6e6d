// The state that we attach to a llama_context. It implements pymtp_context.h and the hooks.
#pragma once

#include "reduced_output.h"
#include "pymtp_context.h"
#include "replay.h"

#include "llama-context.h"

#include <array>
#include <vector>

class llama_kv_cache;
class llama_kv_cache_context;
class llama_memory_recurrent;

struct pymtp_extension {
    explicit pymtp_extension(llama_context & ctx);

    static pymtp_extension & get(llama_context * ctx);

    llama_context & ctx;

    llama_kv_cache *         kv     = nullptr;
    llama_memory_recurrent * states = nullptr; // null in a draft context
    bool kv_on_host = true;

    pymtp_graph_settings & settings() { return ctx.cparams.pymtp; }

    void set_tap(bool pre_norm);

    // ── decode.cpp ──

    int  decode(const llama_batch & batch, uint32_t slot);
    void reserve();

    // tells whether the abort callback wants the current call to end
    bool abort_requested() const;

    // runs before each ubatch
    bool apply(const llama_ubatch & ubatch, llama_memory_context_i & mctx);

    static llama_kv_cache_context & cells_of(llama_memory_context_i & mctx);

    pymtp_output_bytes bytes; // `samples` and `buffer` are counted elsewhere

    // ── graph_slots.cpp ──

    // a graph with its scheduler; swapped with llama_context's members of the same names while a batch of the slot is
    // decoded
    struct graph_slot {
        ggml_backend_sched_ptr sched;

        std::array<llm_graph_result_ptr, 2> gf_res_prev;

        llm_graph_result * gf_res_prev_active = nullptr;

        uint32_t max_nodes = 0;
        uint32_t n_tokens  = 0;
    };

    std::vector<graph_slot> slots; // slot i is at i - 1: slot 0 is llama.cpp's own
    uint32_t                last_slot = 0;

    // n_steps: the number of tokens of each sequence
    void prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs);
    uint32_t max_graph_nodes(uint32_t n_steps) const;
    void swap_slot(graph_slot & slot);

    // ── pending_hidden.cpp ──

    ggml_context_ptr        pending_ctx;
    ggml_backend_buffer_ptr pending_buf; // holds the one tensor of pending_ctx

    // the draft context whose cache the target's graphs fill, and the ubatch's cells in it
    pymtp_extension *        draft_extension = nullptr;
    llama_memory_context_ptr head_mctx;

    void set_fused_sync(pymtp_extension * draft, bool deferred);
    void use_pending_hidden(const pymtp_extension * target);
    void set_pending_hidden(llama_seq_id seq, llama_pos pos, const float * row);
    void get_pending_hidden(llama_seq_id seq, llama_pos pos,       float * row);
    void make_pending_hidden();
    void find_head_cells(const llama_ubatch & ubatch);
    const llama_kv_cache_context * head_cells() const;

    // ── reduced_output.cpp ──

    std::unique_ptr<pymtp_reduced_output> reduced_output; // null: drafts use the whole vocabulary

    void make_reduced_output(int32_t n_main, int32_t n_recent);
    void set_reduced_output(const llama_token * tokens, bool only_recent, const void * data);

    // ── replay.cpp ──

    std::unique_ptr<pymtp_replay> replay;

    void make_replay(uint32_t max_rewind);
    void force_device_ops(bool value);

    // assigns to an empty sequence the recurrent cell of its own number, if that cell is free
    void assign_state_cell(llama_seq_id seq);
    bool rewind(llama_seq_id seq, llama_pos n_keep);

    // ── copy.cpp ──

    int64_t copy_sequence(llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head);
    int64_t copy_cells(llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n);

    // ── save.cpp ──

    size_t  cell_bytes() const;
    pymtp_kv_format kv_format() const;
    bool    has_cells_in_order(llama_seq_id seq, int32_t n) const;
    bool    save_cells(llama_seq_id seq, llama_pos first, int32_t n,       uint8_t * data, size_t stride);
    bool    load_cells(llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data, size_t stride);
    int32_t n_to_replay(llama_seq_id seq, llama_pos n_tokens) const;
    int32_t max_to_replay() const;
    size_t  state_bytes(int32_t n_replay) const;
    bool    save_state(llama_seq_id seq, llama_pos n_tokens, uint8_t * data);
    bool    load_state(llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay, const uint8_t * data);

    // throws when the sequence is not empty, or when another one occupies the recurrent cell of its number
    void require_empty(llama_seq_id seq) const;

    // ── sample.cpp ──

    struct {
        pymtp_graph_sample params;
        int64_t            n_bytes = 0; // read by callbacks, or copied to the host
    } sample;

    // scratch: the tokens of a callback's candidates, when these are rows of the draft vocabulary
    std::vector<llama_token> sample_tokens;

    std::vector<llama_token> sampled; // by argmax, in the last batch
    std::vector<float>       sampled_values;

    void set_sample(const pymtp_graph_sample & params);
    void fetch_sampled();
    void get_sampled(llama_token * tokens, float * values, int32_t n);

    // ── memory_use.cpp ──

    pymtp_memory_parts memory() const;
    pymtp_bytes_by_buffer        weights_bytes() const;
    pymtp_bytes_by_buffer        states_bytes() const;
    pymtp_bytes_by_buffer        pending_hidden_bytes() const;
    pymtp_bytes_by_buffer        planned_compute(int32_t n_seqs, int32_t n);
    llama_memory_context_ptr make_memory_context(const llama_ubatch & ubatch) const;
    int64_t            output_buffer_bytes() const;
};
