// MUL_MAT of few rows with weights in an AMX buffer. The kernels are in amx.h, which is compiled as a part of
// llama.cpp's amx/mmq.cpp.

#include "kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#include "amx/amx.h"
#include "ggml-backend-impl.h"
#endif

namespace pymtp {

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

static bool is_supported(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    return src0->extra && src0->buffer && src0->buffer->buft == ggml_backend_amx_buffer_type() && is_few_rows(dst);
}

size_t mul_mat_amx_work_size(const ggml_tensor * dst) {
    return is_supported(dst) ? few_rows_work_size(dst) : 0;
}

bool compute_mul_mat_amx(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!is_supported(dst)) {
        return false;
    }
    few_rows_mul_mat(params, dst);
    return true;
}

#else

size_t mul_mat_amx_work_size(const ggml_tensor *) {
    return 0;
}

bool compute_mul_mat_amx(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

#endif

}  // namespace pymtp
