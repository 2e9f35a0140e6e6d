// What a llama_context has from us: the state behind pymtp_context.h, and what the hooks do with it.
#pragma once

#include "output_rows.h"
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

    static pymtp_extension & of(llama_context * ctx);

    llama_context & ctx;

    llama_kv_cache *         kv     = nullptr;
    llama_memory_recurrent * states = nullptr; // null in a draft context
    bool kv_on_host = true;

    pymtp_graph_settings & settings() { return ctx.cparams.pymtp; }

    void set_tap(bool pre_norm);

    // ── decode.cpp ──

    int  decode(const llama_batch & batch, uint32_t slot);
    void reserve();

    // whether what runs is to end, as the abort callback says
    bool wants_stop() const;

    // while a ubatch begins
    bool apply(const llama_ubatch & ubatch, llama_memory_context_i & mctx);

    static llama_kv_cache_context & cells_of(llama_memory_context_i & mctx);

    pymtp_output_bytes bytes; // without what the fields below count

    // ── slots.cpp ──

    // what the members of llama_context of these names hold while a batch of the slot is decoded
    struct graph_slot {
        ggml_backend_sched_ptr sched;

        std::array<llm_graph_result_ptr, 2> gf_res_prev;

        llm_graph_result * gf_res_prev_active = nullptr;

        uint32_t max_nodes = 0;
        uint32_t n_tokens  = 0;
    };

    std::vector<graph_slot> slots; // past slot 0, which is llama.cpp's own
    uint32_t                last_slot = 0;

    // n_steps: tokens of a sequence
    void prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs);
    uint32_t most_nodes(uint32_t n_steps) const;
    void swap_slot(graph_slot & slot);

    // ── kept_rows.cpp ──

    ggml_context_ptr        rows_ctx;
    ggml_backend_buffer_ptr rows_buf; // holds the one tensor of rows_ctx

    // the draft context whose cache the graphs fill, and the cells of this ubatch there
    pymtp_extension *        synced = nullptr;
    llama_memory_context_ptr sync_mctx;

    void set_sync(pymtp_extension * draft, bool defer);
    void take_kept_rows(const pymtp_extension * target);
    void set_kept_row(llama_seq_id seq, llama_pos pos, const float * row);
    void get_kept_row(llama_seq_id seq, llama_pos pos,       float * row);
    void make_rows();
    void find_sync_cells(const llama_ubatch & ubatch);
    const llama_kv_cache_context * sync_cells() const;

    // ── output_rows.cpp ──

    std::unique_ptr<pymtp_output_rows> output_rows; // null: drafts are made over the whole vocabulary

    void make_draft_rows(int32_t n_main, int32_t n_annex);
    void set_draft_rows(const llama_token * tokens, bool only_annex, const void * data);

    // ── replay.cpp ──

    std::unique_ptr<pymtp_replay> replay;

    void make_replay(uint32_t n_back);
    void compute_as_devices(bool value);

    // gives a sequence that holds nothing the cell of its own number, if that is free
    void place_state(llama_seq_id seq);
    bool rewind(llama_seq_id seq, llama_pos n_keep);

    // ── copy.cpp ──

    int64_t copy_sequence(llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head);
    int64_t copy_cells(llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n);

    // ── save.cpp ──

    size_t  cell_bytes() const;
    pymtp_cell_kind cell_kind() const;
    bool    has_cells_in_order(llama_seq_id seq, int32_t n) const;
    bool    save_cells(llama_seq_id seq, llama_pos first, int32_t n,       uint8_t * data, size_t stride);
    bool    load_cells(llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data, size_t stride);
    int32_t n_to_replay(llama_seq_id seq, llama_pos n_tokens) const;
    int32_t most_to_replay() const;
    size_t  state_bytes(int32_t n_replay) const;
    bool    save_state(llama_seq_id seq, llama_pos n_tokens, uint8_t * data);
    bool    load_state(llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay, const uint8_t * data);

    // throws where the sequence holds something, or where its state cannot be in the cell of its number
    void require_place(llama_seq_id seq) const;

    // ── sample.cpp ──

    struct {
        pymtp_graph_sample params;
        int64_t            n_bytes = 0; // that callbacks got, or were copied out
    } sample;

    std::vector<llama_token> sample_tokens; // for a callback, where what it samples from are rows of the draft vocabulary

    std::vector<llama_token> sampled; // by argmax, of the last batch
    std::vector<float>       sampled_values;

    void set_sample(const pymtp_graph_sample & params);
    void copy_sampled();
    void get_sampled(llama_token * tokens, float * values, int32_t n);

    // ── memory_use.cpp ──

    pymtp_memory_parts memory() const;
    pymtp_bytes        weights_bytes() const;
    pymtp_bytes        states_bytes() const;
    pymtp_bytes        kept_rows_bytes() const;
    pymtp_bytes        planned_compute(int32_t n_seqs, int32_t n);
    llama_memory_context_ptr place(const llama_ubatch & ubatch) const;
    int64_t            output_buffer_bytes() const;
};
