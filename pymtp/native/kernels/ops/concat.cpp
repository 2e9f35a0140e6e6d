// CONCAT of 4-byte elements by rows, split among all threads.
//
// llama.cpp copies element by element, and splits only dimension 2 among the threads. Where that dimension is 1, one
// thread copies while the others wait: where a head joins the embedding and the hidden state, where hidden states are
// shifted by one token, and in the convolution of a delta net with one sequence. In the prefill of a small model,
// CONCAT took half of the time in which the head's K and V are computed, and several per cent of the prefill's time
// without MTP.

#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace pymtp {

// Copies n_rows rows of n elements, which have 4 bytes each. In the source x, elements are nb0 bytes apart, and rows
// nb1 bytes. In the destination y, elements are contiguous, and rows are nby1 bytes apart.
static void copy_rows(char * y, size_t nby1, const char * x, size_t nb0, size_t nb1, int64_t n, int64_t n_rows) {
    if (nb0 == sizeof(float) && n >= 16) {
        for (int64_t ir = 0; ir < n_rows; ++ir) {
            memcpy(y + ir*nby1, x + ir*nb1, n*sizeof(float));
        }
        return;
    }
    // Short or transposed rows are copied column by column, which is the order of a transposed source. 64 rows at a
    // time are copied, so that they stay in the cache.
    for (int64_t ir0 = 0; ir0 < n_rows; ir0 += 64) {
        const int64_t ir1 = std::min<int64_t>(ir0 + 64, n_rows);
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t ir = ir0; ir < ir1; ++ir) {
                *(float *) (y + i*sizeof(float) + ir*nby1) = *(const float *) (x + i*nb0 + ir*nb1);
            }
        }
    }
}

bool compute_concat(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    GGML_TENSOR_BINARY_OP_LOCALS

    if ((dst->type != GGML_TYPE_F32 && dst->type != GGML_TYPE_I32) || nb0 != sizeof(float)) {
        return false;
    }
    const int32_t dim = ggml_get_op_params_i32(dst, 0);
    GGML_ASSERT(dim >= 0 && dim < 4);

    int64_t o[4] = {0, 0, 0, 0};
    o[dim] = src0->ne[dim];

    // The rows of all dimensions are split among the threads.
    const int64_t nr  = ne1*ne2*ne3;
    const int64_t dr  = (nr + params->nth - 1)/params->nth;
    const int64_t ir1 = std::min(dr*(params->ith + 1), nr);

    int64_t ir = dr*params->ith;
    while (ir < ir1) {
        const int64_t i1 = ir%ne1;
        const int64_t i2 = ir/ne1%ne2;
        const int64_t i3 = ir/ne1/ne2;

        // The next n_rows rows have the same sources: both src0 and src1 if dim is 0, else one of the two.
        const bool    in_src0 = i1 < ne01 && i2 < ne02 && i3 < ne03;
        const int64_t n_rows  = std::min(ir1 - ir, (in_src0 ? ne01 : ne1) - i1);
        const int64_t n0      = in_src0 ? ne00 : 0;

        char * y = (char *) dst->data + i1*nb1 + i2*nb2 + i3*nb3;

        if (n0 > 0) {
            copy_rows(y, nb1, (const char *) src0->data + i1*nb01 + i2*nb02 + i3*nb03, nb00, nb01, n0, n_rows);
        }
        if (n0 < ne0) {
            const char * x = (const char *) src1->data + (i1 - o[1])*nb11 + (i2 - o[2])*nb12 + (i3 - o[3])*nb13;
            copy_rows(y + n0*sizeof(float), nb1, x, nb10, nb11, ne0 - n0, n_rows);
        }
        ir += n_rows;
    }
    return true;
}

}  // namespace pymtp
