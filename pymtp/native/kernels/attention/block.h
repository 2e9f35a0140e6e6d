// Attention of a block of rows over a chunk of KV cells. The cells are converted to F32 once for all rows of the block,
// except F16 cells for few rows, and K of quantized types that have no fast conversion: that is multiplied by the
// vec_dot of its type. The steps for a row do not depend on the other rows of the block.

#pragma once

#include "kernels.h"
#include "ops.h"

namespace pymtp {

static constexpr int     BLOCK_Q  = 128; // most rows that are computed together
static constexpr int64_t CHUNK_KV = 512; // most cells of a partial result

// Returns how many floats of scratch each thread needs. The scratch of all threads is at the beginning of the work
// space.
int64_t block_scratch_size(int64_t DK, int64_t DV);

// Computes a partial result for each of the rows ir0 to ir1 (excluded) of q: at most BLOCK_Q rows, which share a KV
// head. It covers the KV cells ic_start to ic_end (excluded), at most CHUNK_KV. A partial result is [M, S, VKQ]: the
// maximum of the scores, the sum of the weights, and the weighted sum of V. The results are partial_stride floats
// apart.
void attend_block(
    const ggml_compute_params * params, const ggml_tensor * dst,
    int64_t ir0, int64_t ir1, int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride);

}  // namespace pymtp
