// Finds the KV cells of a sequence's tokens, and the place of a layer's cells in its tensors.
#pragma once

#include "llama-kv-cache.h"

#include <vector>

// A run of adjacent cells.
struct pymtp_cell_run {
    uint32_t first;
    uint32_t n;
};

// The cells of a sequence's tokens from `first` to before `end`, in the order of the tokens.
std::vector<pymtp_cell_run> pymtp_find_runs(const llama_kv_cells & cells, llama_seq_id seq, llama_pos first,
        llama_pos end);

// The tensor with the K or the V of one layer.
struct pymtp_cell_tensor {
    ggml_tensor * tensor;
    bool          transposed; // V as [n_cells, n_elements]: a row holds one element of all cells


    size_t n_bytes() const { return tensor->nb[1]; } // bytes of one cell

    // Returns the offset of a cell; in a transposed tensor, of its first element (the others follow at
    // element_stride()).
    size_t offset(uint32_t stream, uint32_t cell) const {
        return stream*tensor->nb[2] + cell*(transposed ? element_size() : tensor->nb[1]);
    }
    size_t element_size()   const { return ggml_type_size(tensor->type); }
    size_t element_stride() const { return tensor->ne[1]*element_size(); }
};

// Returns the tensors layer by layer, K before V.
std::vector<pymtp_cell_tensor> pymtp_cell_tensors(const llama_kv_cache & kv);
