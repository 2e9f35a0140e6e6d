// The interface of the kernels for quantized weights. A kernel multiplies a matrix of weights by rows of activations
// (rows of src1), and reads the weights once for all rows. Each kernel is for one layout of the weights. quantized.cpp
// calls the kernels, for MUL_MAT and for the experts of MUL_MAT_ID, and splits the work among the threads.
//
// The result of a row depends only on that row and the weights: it has the same bits, whatever other rows are in the
// batch. To have the same bits in plain decoding, single rows are multiplied by these kernels, too.
//
// In the files of this folder, "rows" means rows of activations. Rows of the weights are always called "rows of the
// weights".

#pragma once

#include "kernels.h"

namespace pymtp {

constexpr int64_t ROWS_PER_CALL = 64;  // most rows of one call of multiply()

struct rows_kernel {
    // The number of rows of the weights must be a multiple of row_multiple.
    int64_t row_multiple;

    // Returns the size in bytes of a prepared row, which has k elements.
    size_t (*prepared_size)(int64_t k);

    // Quantizes elements [k0, k1) of a row of k elements to the layout that multiply() reads. k0 must be a multiple of
    // 256; k1 must be a multiple of 256, or k. Several threads may prepare parts of the same row.
    void (*prepare)(const float * x, char * prepared, int64_t k, int64_t k0, int64_t k1);

    // Computes y[r][i], the dot product of row i of the weights and prepared row x[r]. m: number of rows of the
    // weights, which are `stride` bytes apart. n: number of prepared rows, 1 to ROWS_PER_CALL.
    void (*multiply)(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y);

    // The kernel is used for at most max_rows rows (with experts: tokens); llama.cpp computes larger products. A
    // verification has at most 65 rows.
    int64_t max_rows = 65;

    // The best number of rows of the weights for a call of multiply(). Threads split the weights into multiples of it.
    int64_t tile = row_multiple;
};

// Returns the kernel for a matrix of weights, by its type and buffer, or nullptr if llama.cpp's own code must multiply
// it.
const rows_kernel * rows_kernel_of(const ggml_tensor * weights);

// rows_kernel_of() calls one of these two functions. They return nullptr if there is no kernel for this processor or
// for the layout of the weights.
const rows_kernel * repacked_kernel_of(const ggml_tensor * weights);  // for weights that llama.cpp repacked
const rows_kernel * plain_kernel_of(const ggml_tensor * weights);     // for weights in the layout of the GGUF file

extern const rows_kernel short_q8_0_kernel;  // for short rows of Q8_0 weights in the layout of the GGUF file

}  // namespace pymtp
