// K and V of a sequence's tokens: which cells of a cache they are in, and where a layer's cells are in its tensors.
#pragma once

#include "llama-kv-cache.h"

#include <vector>

// Runs of cells that lie side by side.
struct pymtp_cell_run {
    uint32_t first;
    uint32_t n;
};

// The cells of a sequence's tokens from `first` to before `end`, in the order of the tokens.
std::vector<pymtp_cell_run> pymtp_runs_of(const llama_kv_cells & cells, llama_seq_id seq, llama_pos first, llama_pos end);

// K or V of a layer.
struct pymtp_cell_tensor {
    ggml_tensor * tensor;
    bool          transposed; // a row for each element of a token's V, and in it a place for each cell

    size_t n_bytes() const { return tensor->nb[1]; } // of a cell

    // Where a cell is, of a transposed tensor its first element. The elements of that are element_stride() apart.
    size_t offset(uint32_t stream, uint32_t cell) const {
        return stream*tensor->nb[2] + cell*(transposed ? element_size() : tensor->nb[1]);
    }
    size_t element_size()   const { return ggml_type_size(tensor->type); }
    size_t element_stride() const { return tensor->ne[1]*element_size(); }
};

// Layer by layer, K before V.
std::vector<pymtp_cell_tensor> pymtp_cell_tensors(const llama_kv_cache & kv);
