// Which kernel multiplies weights in llama.cpp's repack buffer: each type has one layout there, on x86.

#include "rows_interleaved.h"

#if defined(GGML_USE_CPU_REPACK)
#include "repack.h"
#endif

namespace pymtp {

const rows_kernel * interleaved_kernel_of(const ggml_tensor * weights) {
#if defined(PYMTP_ROWS_SIMD) && defined(GGML_USE_CPU_REPACK)
    if (!weights->extra || !weights->buffer || weights->buffer->buft != ggml_backend_cpu_repack_buffer_type()) {
        return nullptr;
    }
    switch (weights->type) {
        case GGML_TYPE_Q4_0:   return &rows_q4_0x8;
        case GGML_TYPE_IQ4_NL: return &rows_iq4_nlx8;
        case GGML_TYPE_MXFP4:  return &rows_mxfp4x8;
        case GGML_TYPE_Q4_K:   return &rows_q4_Kx8;
        case GGML_TYPE_Q2_K:   return &rows_q2_Kx8;
        default:               return nullptr;
    }
#else
    (void) weights;
    return nullptr;
#endif
}

}  // namespace pymtp
