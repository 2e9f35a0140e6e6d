// MUL where each row is multiplied by one factor, with the rows split among all threads. Models multiply the outputs of
// experts by their router weights in this way, and the output of a shared expert by its gate.
//
// llama.cpp does integer divisions for each element to find the element's factor. In a model with experts, this took 5%
// of the time of a token, and 9% of the time of a verification of eight rows.

#include "kernels.h"

namespace pymtp {

bool compute_scale_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    GGML_TENSOR_BINARY_OP_LOCALS

    const bool all_f32 = src0->type == GGML_TYPE_F32 && src1->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_F32;
    if (ne10 != 1 || ne00 == 1 || !all_f32 || nb00 != sizeof(float) || nb0 != sizeof(float)) {
        return false;
    }
    for (int64_t ir = params->ith; ir < ne1*ne2*ne3; ir += params->nth) {
        const int64_t i1 = ir%ne1;
        const int64_t i2 = ir/ne1%ne2;
        const int64_t i3 = ir/ne1/ne2;

        const float * x = (const float *) ((const char *) src0->data + i1*nb01 + i2*nb02 + i3*nb03);
        const float   s = *(const float *) ((const char *) src1->data + i1%ne11*nb11 + i2%ne12*nb12 + i3%ne13*nb13);
        float *       y = (float *) ((char *) dst->data + i1*nb1 + i2*nb2 + i3*nb3);
        for (int64_t i = 0; i < ne0; ++i) {
            y[i] = x[i]*s;
        }
    }
    return true;
}

}  // namespace pymtp
