// Hidden states kept on the device for the head, and the inputs that say which of them a graph takes and keeps.
//
// They are F32 [n_embd, n_kept, n_seq_max]: the hidden state of the token at pos is at pos % n_kept.
#pragma once

#include "llama-graph.h"
#include "llama-kv-cache.h"

// Of all rows, the one that the token at pos goes with: that of the token before.
inline int32_t pymtp_row_before(const ggml_tensor * rows, llama_seq_id seq, llama_pos pos) {
    return seq*rows->ne[1] + (pos + rows->ne[1] - 1) % rows->ne[1];
}

inline ggml_tensor * pymtp_all_rows(ggml_context * ctx, ggml_tensor * rows) {
    return ggml_reshape_2d(ctx, rows, rows->ne[0], rows->ne[1]*rows->ne[2]);
}

// The last n rows of each sequence, of rows [n_embd, n_seq_tokens, n_seqs], side by side.
ggml_tensor * pymtp_last_rows(ggml_context * ctx, ggml_tensor * rows, int64_t n);

// Of a target's graph: cells of the draft context's cache, and rows.
class pymtp_input_sync : public llm_graph_input_attn_kv {
public:
    pymtp_input_sync(const llama_hparams & hparams, const llama_cparams & cparams);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    ggml_tensor * take = nullptr; // I32 [n_seqs] the row that the first token of each sequence goes with
    ggml_tensor * keep = nullptr; // I32 [n_keep*n_seqs] where the last hidden states of each sequence are kept
};

// Of a draft context's graph: tokens that go with kept rows.
class pymtp_input_kept : public llm_graph_input_i {
public:
    pymtp_input_kept(uint32_t n_pos_per_embd, ggml_tensor * kept) : n_pos_per_embd(n_pos_per_embd), kept(kept) {}

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    ggml_tensor * tokens = nullptr; // I32 [n_tokens], of a chain the first of each sequence
    ggml_tensor * rows   = nullptr; // I32 [n_tokens], likewise
    ggml_tensor * pos    = nullptr; // I32 [n_pos_per_embd*n_seqs, n_steps] of a chain

    const uint32_t n_pos_per_embd;

    ggml_tensor * kept;
};
