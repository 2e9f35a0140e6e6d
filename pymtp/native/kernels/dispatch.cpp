// The hooks that llama.cpp's CPU backend calls (pymtp_kernels.h). They choose the kernel that computes a node.

#include "kernels.h"
#include "op_times.h"
#include "pymtp_kernels.h"

#include <algorithm>

using namespace pymtp;

bool pymtp_compute_forward(const ggml_compute_params * params, ggml_tensor * dst) {
    if (params->use_ref) {
        return false;  // the caller wants llama.cpp's own code as a reference
    }
    switch (dst->op) {
        case GGML_OP_ARGMAX:          return compute_argmax(params, dst);
        case GGML_OP_CONCAT:          return compute_concat(params, dst);
        case GGML_OP_FLASH_ATTN_EXT:  return compute_flash_attn(params, dst);
        case GGML_OP_GATED_DELTA_NET: return compute_delta_net(params, dst);
        case GGML_OP_MUL_MAT:
#if defined(PYMTP_AMX)
            if (compute_mul_mat_amx(params, dst)) {
                return true;
            }
#endif
            return compute_mul_mat_quantized(params, dst) || compute_mul_mat_float(params, dst);
        case GGML_OP_MUL_MAT_ID:      return compute_mul_mat_quantized(params, dst);
        case GGML_OP_RMS_NORM:        return compute_rms_norm(params, dst);
        case GGML_OP_SSM_CONV:        return compute_ssm_conv(params, dst);
        case GGML_OP_TOP_K:           return compute_top_k(params, dst);
        default:                      return false;
    }
}

bool pymtp_work_size(int n_threads, const ggml_tensor * dst, size_t * size) {
    size_t ours = 0;
    switch (dst->op) {
        case GGML_OP_FLASH_ATTN_EXT: ours = flash_attn_work_size(n_threads, dst); break;
        case GGML_OP_MUL_MAT:
#if defined(PYMTP_AMX)
            ours = mul_mat_amx_work_size(dst);
#endif
            ours = std::max(ours, mul_mat_quantized_work_size(dst));
            break;
        case GGML_OP_MUL_MAT_ID:     ours = mul_mat_quantized_work_size(dst);     break;
        default:                                                                  break;
    }
    if (ours == 0) {
        return false;
    }
    *size = ours;
    return true;
}

int pymtp_compute_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params) {
    if (op_times * times = params->ith == 0 ? timing() : nullptr) {
        times->begin(cgraph, node_n);
    }
    switch (cgraph->nodes[node_n]->op) {
        case GGML_OP_RMS_NORM: return compute_rms_norm_fused(cgraph, node_n, params);
        default:               return 0;
    }
}
