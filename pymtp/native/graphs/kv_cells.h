// Finds the KV cells that hold the tokens of a sequence, and where each cell is in the K and V tensors of a layer.
#pragma once

#include "llama-kv-cache.h"

#include <vector>

// A run of n adjacent cells, from the cell `first` on.
struct pymtp_cell_run {
    uint32_t first;
    uint32_t n;
};

// Returns the cells of the tokens from `first` to end - 1 of a sequence, in the order of the tokens.
std::vector<pymtp_cell_run> pymtp_find_runs(const llama_kv_cells & cells, llama_seq_id seq, llama_pos first,
        llama_pos end);

// The tensor that holds K or V of one layer.
struct pymtp_cell_tensor {
    ggml_tensor * tensor;
    // the tensor is V of shape [n_cells, n_elements], in which a row holds one element of all cells
    bool          transposed;


    size_t n_bytes() const { return tensor->nb[1]; } // returns the size of one cell in bytes

    // Returns the byte offset of a cell. In a transposed tensor it is the offset of the cell's first element; further
    // elements follow at distances of element_stride().
    size_t offset(uint32_t stream, uint32_t cell) const {
        return stream*tensor->nb[2] + cell*(transposed ? element_size() : tensor->nb[1]);
    }
    size_t element_size()   const { return ggml_type_size(tensor->type); }
    size_t element_stride() const { return tensor->ne[1]*element_size(); }
};

// Returns the K and V tensors of a cache, layer by layer, K before V.
std::vector<pymtp_cell_tensor> pymtp_cell_tensors(const llama_kv_cache & kv);
