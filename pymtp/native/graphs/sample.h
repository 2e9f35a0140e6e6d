// Builds the nodes of a graph that sample tokens from its logits.
#pragma once

#include "llama-graph.h"

// The sampled tokens, one for each row of logits: tokens is I32 [n_rows]; values, which only argmax has, is F32
// [n_rows] with the logit or probability of each token.
struct pymtp_sampled {
    ggml_tensor * tokens = nullptr;
    ggml_tensor * values = nullptr;

    void append(ggml_context * ctx, const pymtp_sampled & next);

    // For argmax, registers the samples as the graph's outputs t_sampled and t_sampled_probs.
    void set_outputs(const llm_graph_context & graph) const;
};

pymtp_sampled pymtp_build_sample(const llm_graph_context & graph, ggml_tensor * logits);
