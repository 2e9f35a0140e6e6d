// The kernels that dispatch.cpp chooses from. A function that returns bool computes a node. Where it returns false, it
// has changed nothing, and llama.cpp's own kernel computes the node. All threads of a graph call it with the same node.

#pragma once

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // static functions of llama.cpp's headers
#endif
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // inside intrinsics, https://gcc.gnu.org/PR105593
#endif

#include <cstddef>
#include <cstdint>

namespace pymtp {

bool compute_argmax(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_concat(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_delta_net(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_flash_attn(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_l2_norm(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_mul_mat_amx(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_mul_mat_float(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_mul_mat_quantized(const ggml_compute_params * params, ggml_tensor * dst);  // and MUL_MAT_ID
bool compute_rms_norm(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_scale_rows(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_sigmoid(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_top_k(const ggml_compute_params * params, ggml_tensor * dst);

// These return the bytes of work space that a node needs, or 0 where the kernel declines the node.
size_t flash_attn_work_size(int n_threads, const ggml_tensor * dst);
size_t mul_mat_amx_work_size(const ggml_tensor * dst);
size_t mul_mat_quantized_work_size(const ggml_tensor * dst);

// Does the same as pymtp_compute_fused(), for an RMS_NORM and the nodes after it.
int compute_rms_norm_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params);

// Products of 2 to 8 rows with weights in an AMX buffer, where the processor has AMX (matmul/amx.h).
bool is_few_rows(const ggml_tensor * dst);
size_t few_rows_work_size(const ggml_tensor * dst);
void few_rows_mul_mat(const ggml_compute_params * params, ggml_tensor * dst);

}  // namespace pymtp
