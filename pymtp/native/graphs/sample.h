// Tokens that are sampled within a graph.
#pragma once

#include "llama-graph.h"

// One sample for each row of logits: I32 [n_rows] tokens and, for argmax, F32 [n_rows] logits or probabilities.
struct pymtp_sampled {
    ggml_tensor * tokens = nullptr;
    ggml_tensor * values = nullptr;

    void append(ggml_context * ctx, const pymtp_sampled & next);

    // makes argmax samples the graph's outputs t_sampled and t_sampled_probs
    void set_outputs(const llm_graph_context & graph) const;
};

pymtp_sampled pymtp_build_sample(const llm_graph_context & graph, ggml_tensor * logits);
