// Attention of a block of rows over a chunk of KV cells. Quantized K is multiplied by its vec_dot. BF16 and quantized V
// are converted to F32 once for the block. The steps for a row do not depend on the other rows of the block.

#pragma once

#include "kernels.h"
#include "ops.h"

namespace pymtp {

static constexpr int     BLOCK_Q  = 16;   // rows that are computed together
static constexpr int64_t CHUNK_KV = 1024; // cells of a partial result

// Returns the number of floats that each thread needs. They lie at the beginning of the work space.
int64_t block_scratch_size(int64_t DK, int64_t DV);

// Computes partial results [M, S, VKQ] (maximum, sum of weights, weighted sum of V) of rows ir0 to ir1 of q, at most
// BLOCK_Q rows that share a KV head, over KV cells ic_start to ic_end, at most CHUNK_KV.
void attend_block(
    const ggml_compute_params * params, const ggml_tensor * dst,
    int64_t ir0, int64_t ir1, int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride);

}  // namespace pymtp
