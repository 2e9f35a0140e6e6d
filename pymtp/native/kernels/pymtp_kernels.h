// The hooks in ggml-cpu. For each node, llama.cpp first calls these functions. It computes the node with its own code
// only if they return false or 0. patches/ adds the calls to traits.cpp and ggml-cpu.c.

#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_tensor;

// Computes the node dst. Every thread of the graph calls this function. If there is no kernel for the node, changes
// nothing and returns false.
bool pymtp_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Sets *size to the bytes of work space that the node dst needs. Returns false, and sets nothing, if llama.cpp's own
// size is right.
bool pymtp_work_size(int n_threads, const struct ggml_tensor * dst, size_t * size);

// Computes node node_n fused with nodes after it. Every thread of the graph calls this function. Returns how many nodes
// are done, including the views between them, or 0 if it computed nothing. Also tells the profiler (op_times.h) that
// the node starts.
int pymtp_compute_fused(const struct ggml_cgraph * cgraph, int node_n, const struct ggml_compute_params * params);

#ifdef __cplusplus
}
#endif
