// The state that we attach to a llama_context. It implements the functions of pymtp_context.h and pymtp_hooks.h.
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
    llama_memory_recurrent * states = nullptr; // null in a draft context, which has no recurrent layers
    bool kv_on_host = true;

    pymtp_graph_settings & settings() { return ctx.cparams.pymtp; }

    void set_tap(bool pre_norm);

    // ── decode.cpp ──

    int  decode(const llama_batch & batch, uint32_t slot);
    void reserve();

    // Returns whether the abort callback asks to end the current call.
    bool abort_requested() const;

    // Prepares the extension for a ubatch. llama.cpp calls it before each ubatch. Returns false when the memory cannot
    // be applied.
    bool apply(const llama_ubatch & ubatch, llama_memory_context_i & mctx);

    static llama_kv_cache_context & cells_of(llama_memory_context_i & mctx);

    pymtp_output_bytes bytes; // without the fields `samples` and `buffer`, which are counted elsewhere

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
    uint32_t max_graph_nodes(uint32_t n_steps) const;
    void swap_slot(graph_slot & slot);

    // ── pending_hidden.cpp ──

    ggml_context_ptr        pending_ctx;
    ggml_backend_buffer_ptr pending_buf; // memory of the only tensor of pending_ctx

    // The draft context whose cache the graphs of this target context fill, and the cells there for the current ubatch.
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

    std::unique_ptr<pymtp_reduced_output> reduced_output; // null: there is none, and drafts use the whole vocabulary

    void make_reduced_output(int32_t n_main, int32_t n_recent);
    void set_reduced_output(const llama_token * tokens, bool only_recent, const void * data);

    // ── replay.cpp ──

    std::unique_ptr<pymtp_replay> replay;

    void make_replay(uint32_t max_rewind);
    void force_device_ops(bool value);

    // Assigns to an empty sequence the recurrent cell that has the sequence's number, if that cell is free.
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

    // Throws when the sequence is not empty, or when another sequence occupies the recurrent cell with its number.
    void require_empty(llama_seq_id seq) const;

    // ── sample.cpp ──

    struct {
        pymtp_graph_sample params;
        // bytes of the logits that callbacks have read, and of the argmax samples that were copied to the host
        int64_t            n_bytes = 0;
    } sample;

    // Temporary memory for the tokens of the candidates that are passed to a callback, used when a graph picks rows of
    // the reduced output layer instead of tokens.
    std::vector<llama_token> sample_tokens;

    // tokens that argmax has sampled in the last batch; sampled_values: their logits or probabilities
    std::vector<llama_token> sampled;
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
