// The graph input with the positions of tokens for RoPE, in contexts whose sequences may hold images.
#pragma once

#include "image_runs.h"

#include "llama-graph.h"

// Writes the positions of n tokens to data, in the order that ggml_rope_multi expects: those of time, of rows, of
// columns, and zeros, n of each. ubatch: the tokens are every stride-th one from `first` on
void pymtp_write_positions(const llama_ubatch & ubatch, const pymtp_images_of & images_of, int64_t first,
        int64_t stride, int64_t n, int32_t * data);

// Replaces llama.cpp's input of positions in a graph, if there is one, by an input that knows of images.
void pymtp_replace_positions(llm_graph_result & graph, const pymtp_images_of & images_of);
