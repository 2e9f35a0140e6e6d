// Products of rows with a matrix of weights, by kernels that read the weights once for all rows. rows.cpp shares the work
// out among the threads, for MUL_MAT and for the experts of MUL_MAT_ID. A kernel knows one layout of weights.
//
// A row's result depends on that row and the weights alone: it has the same bits whatever rows are beside it. So a kernel
// takes single rows, too.

#pragma once

#include "kernels.h"

namespace pymtp {

constexpr int64_t MAX_ROWS = 64;  // of a call of multiply()

struct rows_kernel {
    // rows of the weights are taken in multiples of this
    int64_t unit;

    // Bytes of a row of k elements that prepare() has written.
    size_t (*prepared_size)(int64_t k);

    // Converts elements [k0, k1) of a row of k to the form that multiply() reads. k0 is a multiple of 256, and k1
    // is, too, or it is k. Several threads may prepare parts of one row.
    void (*prepare)(const float * x, char * prepared, int64_t k, int64_t k0, int64_t k1);

    // y[r][i] = row i of the weights times prepared row x[r], for m rows of the weights, `stride` bytes apart, and n rows,
    // 1 to MAX_ROWS.
    void (*multiply)(
        int64_t k, int64_t m, const char * w, size_t stride, int64_t n, const char * const * x, float * const * y);

    // Products of more rows (tokens, with experts) are left to llama.cpp. A verification has 64 drafts at most.
    int64_t most_rows = 65;

    // How many rows of the weights are best multiplied at once. Threads take multiples of it.
    int64_t tile = unit;
};

// The kernel for a matrix of weights, by its type and by the buffer that it lies in. nullptr: llama.cpp's own code takes it.
const rows_kernel * rows_kernel_of(const ggml_tensor * weights);

// What rows_kernel_of() chooses from: nullptr where this processor or this layout has no kernel.
const rows_kernel * interleaved_kernel_of(const ggml_tensor * weights);  // llama.cpp's repacked weights
const rows_kernel * plain_kernel_of(const ggml_tensor * weights);        // weights as in the file

extern const rows_kernel rows_q8_0;  // short rows, where products of bytes go straight to 32 bits (AVX-512 VNNI)

}  // namespace pymtp
