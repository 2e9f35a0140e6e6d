// The hooks of ggml-cpu: llama.cpp calls these functions first, and uses its own code where they decline a node.
// patches/ puts the calls into traits.cpp and ggml-cpu.c.

#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_tensor;

// Computes a node. Every thread of the graph calls it. Returns false, and changes nothing, if no kernel takes the node.
bool pymtp_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Sets the bytes of work space that a node needs. Returns false if llama.cpp's own size is right.
bool pymtp_work_size(int n_threads, const struct ggml_tensor * dst, size_t * size);

// Computes node_n together with nodes that follow it. Returns the number of computed nodes, with the views between
// them, or 0 if none was computed. Every thread of the graph calls it.
int pymtp_compute_fused(const struct ggml_cgraph * cgraph, int node_n, const struct ggml_compute_params * params);

#ifdef __cplusplus
}
#endif
