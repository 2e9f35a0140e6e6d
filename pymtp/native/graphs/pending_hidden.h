// Handles pending hidden states, which the head has yet to combine with the next tokens. They are kept on the device,
// and graph inputs say which of their rows to use.
//
// The tensor has the shape F32 [n_embd, n_rows, n_seq_max], with a ring of rows for each sequence: the hidden state of
// the token at position pos is in row pos % n_rows.
#pragma once

#include "image_runs.h"
#include "own_tensors.h"

#include "llama-graph.h"
#include "llama-kv-cache.h"

// Returns the row that the token at pos is combined with: the row of the token before it. Rows are counted through all
// sequences.
inline int32_t pymtp_hidden_row_for(const ggml_tensor * rows, llama_seq_id seq, llama_pos pos) {
    return seq*rows->ne[1] + (pos + rows->ne[1] - 1) % rows->ne[1];
}

// The pending hidden states of a target context.
class pymtp_pending_hidden {
public:
    // n_rows: number of rows of each sequence. Throws when there is no memory.
    pymtp_pending_hidden(const llama_model & model, int64_t n_rows, int64_t n_seq_max);

    ggml_tensor * tensor() const { return rows; }

    // Write and read the row that the token at pos is combined with. No graph may be running.
    void set(llama_seq_id seq, llama_pos pos, const float * row);
    void get(llama_seq_id seq, llama_pos pos,       float * row) const;

    void add_bytes(pymtp_bytes_by_buffer & sum) const { tensors.add_bytes(sum); }

private:
    pymtp_own_tensors tensors;
    ggml_tensor *     rows;
};

inline ggml_tensor * pymtp_flat_rows(ggml_context * ctx, ggml_tensor * rows) {
    return ggml_reshape_2d(ctx, rows, rows->ne[0], rows->ne[1]*rows->ne[2]);
}

// Returns the last n rows of each sequence, concatenated. rows: [n_embd, n_seq_tokens, n_seqs]
ggml_tensor * pymtp_last_rows(ggml_context * ctx, ggml_tensor * rows, int64_t n);

// The inputs of a target's graph that fills the head's cache: cells of the draft context's cache, and rows of pending
// hidden states.
class pymtp_input_sync : public llm_graph_input_attn_kv {
public:
    pymtp_input_sync(const llama_hparams & hparams, const llama_cparams & cparams);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    ggml_tensor * take = nullptr; // I32 [n_seqs]: the row to combine the first token of each sequence with
    ggml_tensor * keep = nullptr; // I32 [n_keep*n_seqs]: the rows to write the last hidden states of each sequence to
};

// The inputs of a draft context's graph: tokens, and the rows of the pending hidden states that the tokens are combined
// with.
class pymtp_input_pending : public llm_graph_input_i {
public:
    // images_of: see pymtp_set_images; may be empty
    pymtp_input_pending(uint32_t n_pos_per_embd, ggml_tensor * pending, const pymtp_images_of & images_of) :
        n_pos_per_embd(n_pos_per_embd), pending(pending), images_of(images_of) {}

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    ggml_tensor * tokens = nullptr; // I32 [n_tokens]: the tokens; in a chain, only the first token of each sequence
    ggml_tensor * rows   = nullptr; // I32 [n_tokens]: the row that each of `tokens` is combined with
    // I32 [n_pos_per_embd*n_seqs, n_steps]: positions for each step of a chain; null for other graphs
    ggml_tensor * pos    = nullptr;

    const uint32_t n_pos_per_embd;

    ggml_tensor * pending;

    const pymtp_images_of & images_of;
};
