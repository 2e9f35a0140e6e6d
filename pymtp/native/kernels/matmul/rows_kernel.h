// The interface of the kernels for quantized weights. A kernel multiplies a matrix of weights by rows of activations
// (rows of src1), and reads the weights once for all rows. Each kernel is for one layout of weights. quantized.cpp
// calls the kernels, for MUL_MAT and for the experts of MUL_MAT_ID, and splits the work among the threads.
//
// The result of a row depends only on that row and the weights: it has the same bits, whatever other rows are in the
// batch. That is why the kernels also take single rows.
//
// In these files "rows" are rows of activations. Rows of the weights are always called so.

#pragma once

#include "kernels.h"

namespace pymtp {

constexpr int64_t ROWS_PER_CALL = 64;  // rows that multiply() takes at most

struct rows_kernel {
    // The number of rows of the weights must be a multiple of this.
    int64_t row_multiple;

    // Returns the bytes of a row of k elements after prepare().
    size_t (*prepared_size)(int64_t k);

    // Quantizes elements [k0, k1) of a row of k elements to the layout that multiply() reads. k0 is a multiple of 256,
    // and so is k1, unless it is k. Several threads may prepare parts of the same row.
    void (*prepare)(const float * x, char * prepared, int64_t k, int64_t k0, int64_t k1);

    // Computes y[r][i] = row i of the weights times prepared row x[r], for m rows of the weights, which are `stride`
    // bytes apart, and n rows, 1 to ROWS_PER_CALL.
    void (*multiply)(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y);

    // llama.cpp computes products of more rows (with experts: tokens). A verification has at most 65 rows.
    int64_t max_rows = 65;

    // The best number of rows of the weights for a call of multiply(). Threads take multiples of it.
    int64_t tile = row_multiple;
};

// Returns the kernel for a matrix of weights, by its type and its buffer, or nullptr for llama.cpp's own code.
const rows_kernel * rows_kernel_of(const ggml_tensor * weights);

// rows_kernel_of() chooses from these. They return nullptr if there is no kernel for this processor or this layout.
const rows_kernel * repacked_kernel_of(const ggml_tensor * weights);  // for weights that llama.cpp repacked
const rows_kernel * plain_kernel_of(const ggml_tensor * weights);     // for weights in the layout of the file

extern const rows_kernel short_q8_0_kernel;  // short rows of Q8_0 in the layout of the file, with AVX-512 VNNI

}  // namespace pymtp
