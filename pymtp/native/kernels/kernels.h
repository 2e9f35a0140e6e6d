// The kernels that the hooks of pymtp_kernels.h choose from. A function that returns bool computes a node, or declines it
// with false and has touched nothing then. All threads of a graph call it with the same node.

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
bool compute_mul_mat_columns(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_rms_norm(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_rows(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_scale_rows(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst);
bool compute_top_k(const ggml_compute_params * params, ggml_tensor * dst);

// Bytes of work space; 0 where the node is declined or llama.cpp's own size is right.
size_t flash_attn_work_size(int n_threads, const ggml_tensor * dst);
size_t mul_mat_amx_work_size(const ggml_tensor * dst);
size_t rows_work_size(const ggml_tensor * dst);

// As pymtp_compute_fused(), for nodes that begin with one operation.
int compute_delta_net_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params);
int compute_rms_norm_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params);
int leave_state_in_place(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params);

// Where the states of a GATED_DELTA_NET's sequences lie: in a tensor, or each in a row of the recurrent cache.
struct state_source {
    explicit state_source(const ggml_tensor * state) : first((const char *) state->data), nb(state->nb[3]), rows(nullptr) {}
    explicit state_source(const float * const * rows) : first(nullptr), nb(0), rows(rows) {}

    const float * of(int64_t i_seq) const { return rows ? rows[i_seq] : (const float *) (first + i_seq*nb); }

private:
    const char *          first;
    size_t                nb;
    const float * const * rows;
};

// Whether the function below computes a GATED_DELTA_NET.
bool takes_delta_net(const ggml_tensor * dst);

// Computes one whose states are read where they lie. Where `cpy`, a CPY of the new states, is given, they go to the place
// that it copies them to.
bool compute_delta_net(
    const ggml_compute_params * params, ggml_tensor * dst, const state_source & states, const ggml_tensor * cpy);

// Products of 2 to 8 rows with weights in an AMX buffer, where the processor has AMX: mmq_few_rows.h.
bool is_few_rows(const ggml_tensor * dst);
size_t few_rows_work_size(const ggml_tensor * dst);
void few_rows_mul_mat(const ggml_compute_params * params, ggml_tensor * dst);

}  // namespace pymtp
