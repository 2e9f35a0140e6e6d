// Chooses the kernel for weights in llama.cpp's repack buffer. On x86, this buffer has one layout for each type.

#include "matmul/repacked.h"

#if defined(GGML_USE_CPU_REPACK)
#include "repack.h"
#endif

namespace pymtp {

const rows_kernel * repacked_kernel_of(const ggml_tensor * weights) {
#if defined(PYMTP_AVX2) && defined(GGML_USE_CPU_REPACK)
    if (!weights->extra || !weights->buffer || weights->buffer->buft != ggml_backend_cpu_repack_buffer_type()) {
        return nullptr;
    }
    switch (weights->type) {
        case GGML_TYPE_Q4_0:   return &repacked_q4_0;
        case GGML_TYPE_IQ4_NL: return &repacked_iq4_nl;
        case GGML_TYPE_MXFP4:  return &repacked_mxfp4;
        case GGML_TYPE_Q4_K:   return &repacked_q4_K;
        case GGML_TYPE_Q2_K:   return &repacked_q2_K;
        default:               return nullptr;
    }
#else
    (void) weights;
    return nullptr;
#endif
}

}  // namespace pymtp
