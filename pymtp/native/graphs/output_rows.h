// Rows of the output layer that drafts are made over: a copy, on the device that has the layer, of as many rows as the draft
// vocabulary has tokens.
//
// They are two matrices, for a backend may have weights in a layout that is only written as a whole: a large one, written
// seldom, and a small annex for the tokens that join meanwhile. Shapes and places stay the same, so graphs last.
#pragma once

#include "pymtp_context.h"

#include "ggml-cpp.h"

#include <vector>

struct llm_graph_context;

class pymtp_output_rows {
public:
    // Both numbers of rows are multiples of PYMTP_ROW_STEP. Throws where there is no memory.
    pymtp_output_rows(const llama_model & model, int64_t n_main, int64_t n_annex);

    // Of the graph's model, the matrix whose rows these are.
    static ggml_tensor * layer_of(const llama_model & model);

    // A row of n_main + n_annex logits for each row of cur.
    ggml_tensor * logits(const llm_graph_context & graph, ggml_tensor * cur, ggml_tensor * scale) const;

    // The tokens of rows that were picked, I32 as rows.
    ggml_tensor * tokens_of(ggml_context * ctx, ggml_tensor * rows) const;

    // See pymtp_set_draft_rows.
    void set(const llama_token * tokens, bool only_annex, const void * data);

    const std::vector<llama_token> & tokens() const { return tokens_by_row; }

    pymtp_bytes bytes() const;

private:
    const bool no_alloc;

    ggml_context_ptr        weights_ctx, map_ctx;
    ggml_backend_buffer_ptr weights_buf, map_buf;

    ggml_tensor * main;
    ggml_tensor * annex;
    ggml_tensor * map; // I32 [1, n_main + n_annex]: the token of each row

    std::vector<llama_token> tokens_by_row; // the same, on the host
};
