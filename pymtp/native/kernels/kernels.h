// The kernels, for the hooks in dispatch.cpp. A compute_*() function computes the node dst and returns true, or changes
// nothing and returns false; then llama.cpp's own kernel computes the node. All threads of a graph call the function
// with the same node.

#pragma once

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // llama.cpp's headers have unused static functions
#endif
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms in intrinsics, https://gcc.gnu.org/PR105593
#endif

#include <cstddef>
#include <cstdint>

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define PYMTP_AMX
#endif

namespace pymtp {

bool compute_argmax(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_concat(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_delta_net(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_flash_attn(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_mul_mat_amx(const ggml_compute_params * params, ggml_tensor * dst);  // only in builds with PYMTP_AMX
bool compute_mul_mat_float(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_mul_mat_quantized(const ggml_compute_params * params, ggml_tensor * dst);  // also for MUL_MAT_ID
bool compute_rms_norm(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_top_k(const ggml_compute_params * params, ggml_tensor * dst);

// A *_work_size() function returns how many bytes of work space (params->wdata) the node dst needs, or 0 if the kernel
// does not compute the node.
size_t flash_attn_work_size(int n_threads, const ggml_tensor * dst);
size_t mul_mat_amx_work_size(const ggml_tensor * dst);  // only in builds with PYMTP_AMX
size_t mul_mat_quantized_work_size(const ggml_tensor * dst);

// Computes an RMS_NORM (node node_n) together with the MUL after it. Returns the number of computed nodes, or 0 if it
// computed nothing; see pymtp_compute_fused().
int compute_rms_norm_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params);

// Returns row ir of t. The rows of all dimensions are numbered together.
static inline char * row_at(const ggml_tensor * t, int64_t ir) {
    const int64_t i2 = ir/t->ne[1];
    return (char *) t->data + ir%t->ne[1]*t->nb[1] + i2%t->ne[2]*t->nb[2] + i2/t->ne[2]*t->nb[3];
}

// Waits until all threads of the graph have called this function, then calls f(i) for each i from 0 to n - 1, in all
// threads together. A thread that is done early takes more pieces.
template <typename F> static void share_out(const ggml_compute_params * params, int64_t n, F f) {
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int64_t i = params->ith; i < n; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        f(i);
    }
}

}  // namespace pymtp
