// Builds the nodes of a graph that sample tokens from its logits.
#pragma once

#include "pymtp_context.h"

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

// How the graphs of a context sample, and what they have sampled.
class pymtp_graph_sampler {
public:
    void set(const pymtp_graph_sample & params, int32_t n_threads);

    // Computes the share of thread ith of nth of the node `dst`, which samples by the callback.
    // rows: the reduced output layer that made the logits; null: the logits are those of the whole vocabulary
    void sample_rows(ggml_tensor * dst, int ith, int nth, const pymtp_reduced_output * rows);

    // Starts to copy the argmax samples of a batch to the host. res: the batch's graph
    void fetch(const llm_graph_result * res, ggml_backend_sched_t sched);
    // Returns the samples that fetch() has copied. The context must be synchronized.
    void get(llama_token * tokens, float * values, int32_t n) const;

    // Returns the bytes of the logits that callbacks have read, and of the samples that were copied to the host.
    int64_t bytes() const { return n_bytes; }

private:
    pymtp_graph_sample params;
    int64_t            n_bytes = 0;

    // Temporary memory for the tokens of candidates, for each thread, because a graph picks rows of the reduced output
    // layer instead of tokens.
    std::vector<llama_token> candidates;

    std::vector<llama_token> sampled; // by argmax, in the last batch
    std::vector<float>       values;
};

pymtp_sampled pymtp_build_sample(const llm_graph_context & graph, ggml_tensor * logits);
