// The kernels of rows.h for weights that lie as in the file.

#include "rows_plain_prepare.h"

namespace pymtp {

#ifdef PYMTP_ROWS_SIMD

template <typename L> static const rows_kernel * kernel() {
    static const rows_kernel it = {1, plain::prepared_size, plain::prepare<L>, plain::multiply<L>};
    return &it;
}

const rows_kernel * plain_kernel_of(const ggml_tensor * weights) {
    if (weights->extra) {
        return nullptr;  // another layout
    }
    switch (weights->type) {
        case GGML_TYPE_Q4_0:   return kernel<plain::q4_0>();
        case GGML_TYPE_Q8_0:   return kernel<plain::q8_0>();
        case GGML_TYPE_Q3_K:   return kernel<plain::q3_k>();
        case GGML_TYPE_Q4_K:   return kernel<plain::q4_k>();
        case GGML_TYPE_Q5_K:   return kernel<plain::q5_k>();
        case GGML_TYPE_Q6_K:   return kernel<plain::q6_k>();
        case GGML_TYPE_IQ4_NL: return kernel<plain::iq4_nl>();
        case GGML_TYPE_IQ4_XS: return kernel<plain::iq4_xs>();
        default:               return nullptr;
    }
}

#else

const rows_kernel * plain_kernel_of(const ggml_tensor *) {
    return nullptr;
}

#endif

}  // namespace pymtp
