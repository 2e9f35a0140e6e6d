// Tokens sampled within a graph.
#pragma once

#include "llama-graph.h"

// One for each row of logits: I32 [n_rows] tokens and, where they are picked by argmax, F32 [n_rows] logits or probabilities.
struct pymtp_sampled {
    ggml_tensor * tokens = nullptr;
    ggml_tensor * values = nullptr;

    void append(ggml_context * ctx, const pymtp_sampled & more);

    // leaves what argmax picked in t_sampled and t_sampled_probs
    void set_outputs(const llm_graph_context & graph) const;
};

pymtp_sampled pymtp_build_sample(const llm_graph_context & graph, ggml_tensor * logits);
