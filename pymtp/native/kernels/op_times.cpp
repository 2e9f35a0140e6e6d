#include "op_times.h"

#include "kernels.h"

#include <vector>

namespace pymtp {

std::atomic<int>        n_timed{ 0 };
thread_local op_times * times_of_thread = nullptr;

timed_ops::timed_ops(op_times * times) {
    times_of_thread = times;
    n_timed += times != nullptr;
}

timed_ops::~timed_ops() {
    n_timed -= times_of_thread != nullptr;
    times_of_thread = nullptr;
}

static bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
}

static bool has_weights(const ggml_tensor * node) {
    return is_product(node) && node->src[0]->op == GGML_OP_NONE && !node->src[0]->view_src;
}

// Bytes of weights that a node reads: of experts, those that a row chose.
static int64_t weight_bytes(const ggml_tensor * node) {
    if (!has_weights(node)) {
        return 0;
    }
    const int64_t all = ggml_nbytes(node->src[0]);
    if (node->op == GGML_OP_MUL_MAT) {
        return all;
    }
    const ggml_tensor * ids = node->src[2];
    std::vector<bool>   chosen(node->src[0]->ne[2]);
    int64_t             n = 0;
    for (int64_t row = 0; row < ids->ne[1]; ++row) {
        for (int64_t i = 0; i < ids->ne[0]; ++i) {
            const int32_t id = *(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + i * ids->nb[0]);
            if (id >= 0 && id < (int64_t) chosen.size()) {  // else the product fails
                n += !chosen[id];
                chosen[id] = true;
            }
        }
    }
    return all / node->src[0]->ne[2] * n;
}

op_times::sums op_times::take() {
    current = nullptr;
    return std::exchange(found, {});
}

void op_times::begin(const ggml_cgraph * cgraph, int node_n) {
    const clock::time_point now  = clock::now();
    const bool              next = current && cgraph == graph && node_n > last;
    if (next && waits) {
        const double waited = std::chrono::duration<double>(now - marked).count();
        current->seconds += waited;
        current->waiting += waited;
    }
    for (int i = next ? last + 1 : node_n; next && i < node_n; ++i) {
        current->bytes += weight_bytes(cgraph->nodes[i]);  // computed together with the node before
    }
    const ggml_tensor * node = cgraph->nodes[node_n];
    const ggml_type     type = has_weights(node) ? node->src[0]->type : GGML_TYPE_COUNT;

    current = &found[{ ggml_op_desc(node), type }];
    current->nodes++;
    current->bytes += weight_bytes(node);
    graph  = cgraph;
    last   = node_n;
    waits  = false;
    marked = clock::now();
}

void op_times::end_share() {
    if (current && !waits) {
        const clock::time_point now = clock::now();
        current->seconds += std::chrono::duration<double>(now - marked).count();
        marked = now;
        waits  = true;
    }
}

}  // namespace pymtp
