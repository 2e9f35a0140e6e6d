// Builds the MTP block of qwen35, qwen35moe and qwen3next: an attention layer with a dense or MoE FFN. Each row of its
// input combines the embedding of a token with the hidden state of the token before.
#pragma once

#include "llama-graph.h"

struct llama_layer;
struct llama_model;

class pymtp_draft_block {
public:
    // graph: the graph to build the block in; its n_tokens must be the number of rows that go through the block
    pymtp_draft_block(const llm_graph_context & graph, const llama_model & model);

    ggml_tensor * embed(ggml_tensor * tokens) const;

    // Writes K and V of all rows to the cache, and computes nothing else. This suffices for rows that nothing is
    // drafted from, because later tokens use only their K and V.
    void store_kv(llm_graph_input_attn_kv * inp, ggml_tensor * embd, ggml_tensor * hidden, ggml_tensor * pos) const;

    // Builds the whole block for all rows, and the output layer for the rows `out_ids` (null: all rows). Sets t_h_nextn
    // and t_logits of the graph's result.
    void run(
            llm_graph_input_attn_kv * inp, ggml_tensor * embd, ggml_tensor * hidden, ggml_tensor * pos,
            ggml_tensor * out_ids) const;

private:
    struct heads;

    const llm_graph_context & graph;
    const llama_model &       model;

    ggml_context * ctx;

    const int           il;
    const llama_layer & layer;
    const int64_t       n_embd_head;

    ggml_tensor * join(ggml_tensor * embd, ggml_tensor * hidden) const;
    ggml_tensor * rope(ggml_tensor * cur, ggml_tensor * pos) const;
    heads         project(ggml_tensor * cur, ggml_tensor * pos) const;
    ggml_tensor * attend(llm_graph_input_attn_kv * inp, const heads & rows) const;
    ggml_tensor * feed_forward(ggml_tensor * cur) const;
    ggml_tensor * experts(ggml_tensor * cur) const;
};
