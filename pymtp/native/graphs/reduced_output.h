// The reduced output layer: a copy of those rows of the output layer that belong to tokens of the draft vocabulary, on
// the same device as the output layer.
//
// It consists of two matrices: a large one, which is rarely written, and a small one for tokens that have joined the
// draft vocabulary recently. A single matrix would not do, because some backends can write a matrix in their layout
// only as a whole. Shapes and addresses never change, so graphs stay valid.
#pragma once

#include "own_tensors.h"

#include <vector>

struct llm_graph_context;

class pymtp_reduced_output {
public:
    // n_main, n_recent: numbers of rows of the large and the small matrix, which must be multiples of
    // PYMTP_ROW_MULTIPLE. Throws when there is no memory.
    pymtp_reduced_output(const llama_model & model, int64_t n_main, int64_t n_recent);

    // Builds the output layer: returns n_main + n_recent logits for each row of cur.
    ggml_tensor * logits(const llm_graph_context & graph, ggml_tensor * cur, ggml_tensor * scale) const;

    // Builds nodes that map numbers of rows (I32) to tokens.
    ggml_tensor * tokens_of(ggml_context * ctx, ggml_tensor * rows) const;

    // Writes rows, see pymtp_set_reduced_output.
    void set(const llama_token * tokens, bool only_recent, const void * data);

    const std::vector<llama_token> & tokens() const { return tokens_by_row; }

    void add_bytes(pymtp_bytes_by_buffer & sum) const;

private:
    pymtp_own_tensors weights;
    pymtp_own_tensors maps;
    ggml_tensor * main;
    ggml_tensor * recent;
    ggml_tensor * map; // I32 [1, n_main + n_recent]: the token of each row

    std::vector<llama_token> tokens_by_row; // a copy of `map` in host memory
};
