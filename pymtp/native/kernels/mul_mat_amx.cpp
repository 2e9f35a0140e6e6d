// MUL_MAT with weights in an AMX buffer: 2 to 8 rows by the kernels of mmq_few_rows.h, and several batches one by
// one.
//
// llama.cpp's AMX products compute batches, several sequences that come together, wrongly: from the second on, the weight
// is looked for behind itself, and offsets in bytes are added to pointers to floats. A single batch is computed right.

#include "kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

#include "amx/amx.h"
#include "amx/mmq.h"
#include "ggml-backend-impl.h"

namespace pymtp {

static bool is_amx(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    return src0->extra && src0->buffer && src0->buffer->buft == ggml_backend_amx_buffer_type();
}

size_t mul_mat_amx_work_size(const ggml_tensor * dst) {
    return is_amx(dst) && is_few_rows(dst) ? few_rows_work_size(dst) : 0;
}

bool compute_mul_mat_amx(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!is_amx(dst)) {
        return false;
    }
    if (is_few_rows(dst)) {
        few_rows_mul_mat(params, dst);
        return true;
    }
    const int64_t n_batch = dst->ne[2]*dst->ne[3];
    if (n_batch == 1) {
        return false;
    }

    ggml_tensor src0 = *dst->src[0];
    ggml_tensor src1 = *dst->src[1];
    ggml_tensor dst1 = *dst;
    for (ggml_tensor * t : { &src0, &src1, &dst1 }) {
        t->ne[2] = 1;
        t->ne[3] = 1;
    }
    dst1.src[0] = &src0;
    dst1.src[1] = &src1;

    // a part of the work space for each, so that no thread waits between them
    const size_t work_size = ggml_backend_amx_desired_wsize(&dst1);
    GGML_ASSERT(params->wsize >= n_batch*work_size);

    for (int64_t i = 0; i < n_batch; ++i) {
        const int64_t i2 = i%dst->ne[2];
        const int64_t i3 = i/dst->ne[2];

        // batches may share a weight
        const int64_t i02 = i2/(dst->ne[2]/dst->src[0]->ne[2]);
        const int64_t i03 = i3/(dst->ne[3]/dst->src[0]->ne[3]);

        src0.data = (char *) dst->src[0]->data + i02*dst->src[0]->nb[2] + i03*dst->src[0]->nb[3];
        src1.data = (char *) dst->src[1]->data + i2 *dst->src[1]->nb[2] + i3 *dst->src[1]->nb[3];
        dst1.data = (char *) dst->data         + i2 *dst->nb[2]         + i3 *dst->nb[3];

        ggml_compute_params one = *params;
        one.wsize = work_size;
        one.wdata = (char *) params->wdata + i*work_size;
        ggml_backend_amx_mul_mat(&one, &dst1);
    }
    return true;
}

}  // namespace pymtp

#else

namespace pymtp {

size_t mul_mat_amx_work_size(const ggml_tensor *) {
    return 0;
}

bool compute_mul_mat_amx(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

}  // namespace pymtp

#endif
