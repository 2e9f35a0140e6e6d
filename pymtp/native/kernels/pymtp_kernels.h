// The hooks of ggml-cpu: llama.cpp asks these functions first and uses its own code where they decline. patches/ puts the
// calls into traits.cpp and ggml-cpu.c.

#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_tensor;

// Computes a node. Every thread of the graph calls it. false: declined, nothing was touched.
bool pymtp_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Sets the bytes of work space that a node needs. false: llama.cpp's own size is right.
bool pymtp_work_size(int n_threads, const struct ggml_tensor * dst, size_t * size);

// Computes node_n together with nodes that follow it. Returns how many nodes were computed, views between them included;
// 0: none. Every thread of the graph calls it.
int pymtp_compute_fused(const struct ggml_cgraph * cgraph, int node_n, const struct ggml_compute_params * params);

#ifdef __cplusplus
}
#endif
