#include "op_times.h"

#include "kernels.h"

#include <vector>

namespace pymtp {

std::atomic<int>        n_timed_threads{ 0 };
thread_local op_times * thread_op_times = nullptr;

timed_ops::timed_ops(op_times * times) {
    thread_op_times = times;
    n_timed_threads += times != nullptr;
}

timed_ops::~timed_ops() {
    n_timed_threads -= thread_op_times != nullptr;
    thread_op_times = nullptr;
}

static bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
}

static bool has_weights(const ggml_tensor * node) {
    return is_product(node) && node->src[0]->op == GGML_OP_NONE && !node->src[0]->view_src;
}

// Returns how many bytes of weights a node reads. Experts that no row uses do not count.
static int64_t weight_bytes(const ggml_tensor * node) {
    if (!has_weights(node)) {
        return 0;
    }
    const int64_t all_bytes = ggml_nbytes(node->src[0]);
    if (node->op == GGML_OP_MUL_MAT) {
        return all_bytes;
    }
    const ggml_tensor * ids = node->src[2];
    std::vector<bool>   is_used(node->src[0]->ne[2]);
    int64_t             n_used = 0;
    for (int64_t row = 0; row < ids->ne[1]; ++row) {
        for (int64_t i = 0; i < ids->ne[0]; ++i) {
            const int32_t id = *(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + i * ids->nb[0]);
            if (id >= 0 && id < (int64_t) is_used.size()) {  // with an id out of range, the product fails
                n_used += !is_used[id];
                is_used[id] = true;
            }
        }
    }
    return all_bytes / node->src[0]->ne[2] * n_used;
}

op_times::sums op_times::take() {
    current = nullptr;
    return std::exchange(totals, {});
}

void op_times::begin(const ggml_cgraph * cgraph, int node_n) {
    const clock::time_point now  = clock::now();
    const bool              next = current && cgraph == graph && node_n > last_node;
    if (next && share_done) {
        const double seconds = std::chrono::duration<double>(now - since).count();
        current->seconds += seconds;
        current->waiting += seconds;
    }
    for (int i = next ? last_node + 1 : node_n; next && i < node_n; ++i) {
        current->bytes += weight_bytes(cgraph->nodes[i]);  // node i was fused into the last node
    }
    const ggml_tensor * node = cgraph->nodes[node_n];
    const ggml_type     type = has_weights(node) ? node->src[0]->type : GGML_TYPE_COUNT;

    current = &totals[{ ggml_op_desc(node), type }];
    current->nodes++;
    current->bytes += weight_bytes(node);
    graph      = cgraph;
    last_node  = node_n;
    share_done = false;
    since      = clock::now();
}

void op_times::end_share() {
    if (current && !share_done) {
        const clock::time_point now = clock::now();
        current->seconds += std::chrono::duration<double>(now - since).count();
        since      = now;
        share_done = true;
    }
}

}  // namespace pymtp
