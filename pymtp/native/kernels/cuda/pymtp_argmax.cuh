// ARGMAX on CUDA with a defined result: of equal numbers the first wins, and NaN is above all numbers. The CPU has the
// same rule (ops/argmax_top_k.cpp).
//
// llama.cpp's argmax.cu includes this file, and calls pymtp_argmax_f32 instead of llama.cpp's kernel. That kernel takes
// any of equal numbers, skips NaN, and returns -1 where no number is above -FLT_MAX, so that ggml_get_rows would read
// out of bounds.

#pragma once

#include <climits>

struct pymtp_best {
    float val = -INFINITY;
    int   col = INT_MAX;

    // Replaces this element by the other one if the other is larger, or equal and in an earlier column. The order of
    // the calls does not matter.
    __device__ __forceinline__ void take(const float other_val, const int other_col) {
        const bool nan   = isnan(val);
        const bool above = !nan & !(other_val <= val); // also true where other_val is NaN
        const bool equal = (other_val == val) | (nan & isnan(other_val));
        if (above | (equal & (other_col < col))) {
            val = other_val;
            col = other_col;
        }
    }

    // Gives all lanes of a warp the best element of the warp.
    __device__ __forceinline__ void take_warp() {
#pragma unroll
        for (int offset = WARP_SIZE/2; offset > 0; offset >>= 1) {
            const float other_val = __shfl_xor_sync(0xFFFFFFFF, val, offset, WARP_SIZE);
            const int   other_col = __shfl_xor_sync(0xFFFFFFFF, col, offset, WARP_SIZE);
            take(other_val, other_col);
        }
    }
};

// Writes the argmax of one row. The grid has one block for each row, and a block consists of whole warps.
static __global__ void pymtp_argmax_f32(const float * __restrict__ x, int32_t * __restrict__ dst, const int64_t ncols) {
    const float * row = x + blockIdx.x*ncols;

    pymtp_best best;

    // A row may be as long as the vocabulary, so each thread has eight loads in flight.
    constexpr int n_loads = 8;
    for (int64_t col0 = threadIdx.x; col0 < ncols; col0 += n_loads*blockDim.x) {
        float vals[n_loads];
#pragma unroll
        for (int i = 0; i < n_loads; ++i) {
            const int64_t col = col0 + i*blockDim.x;
            vals[i] = col < ncols ? row[col] : -INFINITY; // past the end: cannot win, as its column is the last
        }
#pragma unroll
        for (int i = 0; i < n_loads; ++i) {
            best.take(vals[i], col0 + i*blockDim.x);
        }
    }
    best.take_warp();

    const int n_warps = blockDim.x/WARP_SIZE;
    if (n_warps > 1) {
        __shared__ float vals[1024/WARP_SIZE];
        __shared__ int   cols[1024/WARP_SIZE];

        const int warp = threadIdx.x/WARP_SIZE;
        const int lane = threadIdx.x%WARP_SIZE;
        if (lane == 0) {
            vals[warp] = best.val;
            cols[warp] = best.col;
        }
        __syncthreads();
        if (warp > 0) {
            return;
        }
        if (lane < n_warps) {
            best.take(vals[lane], cols[lane]);
        }
        best.take_warp();
    }
    if (threadIdx.x == 0) {
        dst[blockIdx.x] = best.col;
    }
}
