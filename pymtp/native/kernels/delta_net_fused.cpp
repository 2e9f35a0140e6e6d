// GET_ROWS + GATED_DELTA_NET + CPY: a delta net's state is read where it lies in the recurrent cache, and the new states go
// straight to the cache.
//
// In llama.cpp's graph a GET_ROWS copies the state out of the cache, with one thread, and a CPY copies the new states back.
// Where drafts can be taken back there is a new state for each token of a verification. The copies and the work that
// delta_net.cpp saves were a third of a verification for a small model, a sixth for one of 0.8B. A copy is left out only
// where the graph shows that nothing else reads it, and that nothing is written over the state before it is read.

#include "kernels.h"
#include "ops.h"

#include <algorithm>

namespace pymtp {

// The distance in nodes from a GATED_DELTA_NET to the CPY of its states, if the states can go straight to the place that it
// copies to: only views are between the two, and nothing else reads the states. Otherwise 0.
static int cpy_of_states(const ggml_cgraph * cgraph, int node_n) {
    const ggml_tensor * net = cgraph->nodes[node_n];

    int cpy_n = node_n + 1;
    while (cpy_n < cgraph->n_nodes && ggml_op_is_empty(cgraph->nodes[cpy_n]->op)) {
        cpy_n++;
    }
    if (cpy_n == cgraph->n_nodes || cgraph->nodes[cpy_n]->op != GGML_OP_CPY) {
        return 0;
    }
    const ggml_tensor * cpy    = cgraph->nodes[cpy_n];
    const ggml_tensor * states = cpy->src[0];
    const ggml_tensor * v      = net->src[2];
    const ggml_tensor * s      = net->src[5];

    if ((cpy->flags & GGML_TENSOR_FLAG_COMPUTE) == 0 || states->op != GGML_OP_VIEW || states->src[0] != net) {
        return 0;
    }

    // all states, in the order of the result, each in one piece
    const size_t  states_offs = ggml_nelements(v)*sizeof(float);
    const int64_t n_states    = std::min<int64_t>(v->ne[2], ggml_get_op_params_i32(net, 0));

    if (states->view_offs != states_offs || !ggml_is_contiguous(states) || cpy->type != GGML_TYPE_F32 ||
            cpy->nb[0] != sizeof(float) || cpy->ne[0] != s->ne[0]*s->ne[1]*s->ne[2] ||
            cpy->ne[1] != s->ne[3] || cpy->ne[2] != n_states || cpy->ne[3] != 1) {
        return 0;
    }

    // the result has two readers: the view of the states, which only the CPY reads, and a view that ends before the states
    if (!ggml_node_has_n_uses(cgraph, node_n, 2) || (states->flags & GGML_TENSOR_FLAG_OUTPUT)) {
        return 0;
    }
    bool only_the_cpy = false;
    for (int i = node_n + 1; i < cpy_n; i++) {
        only_the_cpy |= cgraph->nodes[i] == states && ggml_node_get_use_count(cgraph, i) == 1;
    }
    if (!only_the_cpy) {
        return 0;
    }
    for (int i = node_n + 1; i < cgraph->n_nodes; i++) {
        const ggml_tensor * view = cgraph->nodes[i];
        if (view != states && view->src[0] == net) {
            return view->op == GGML_OP_VIEW && view->view_offs + ggml_nbytes(view) <= states_offs ? cpy_n - node_n : 0;
        }
    }
    return 0;
}

// Whether a GATED_DELTA_NET can read its states from the source of a GET_ROWS: that copies a row for each sequence, for the
// delta net alone, and nothing is written to the source between the two.
static bool can_read_in_place(const ggml_cgraph * cgraph, int get_n, int node_n) {
    const ggml_tensor * get   = cgraph->nodes[get_n];
    const ggml_tensor * state = cgraph->nodes[node_n]->src[5];
    const int64_t       n     = ggml_nelements(get->src[1]);

    if (state->op != GGML_OP_RESHAPE || state->src[0] != get || get->op != GGML_OP_GET_ROWS ||
            get->src[0]->type != GGML_TYPE_F32 || !ggml_is_contiguous_rows(get->src[0]) || n != state->ne[3] ||
            ggml_nbytes(get) < n*sizeof(void *) || !ggml_node_has_n_uses(cgraph, get_n, 1)) {
        return false;
    }
    // llama.cpp's own kernel reads states that lie side by side
    if (n > 1 && !takes_delta_net(cgraph->nodes[node_n])) {
        return false;
    }
    const ggml_tensor * all = get->src[0]->view_src ? get->src[0]->view_src : get->src[0];

    bool only_the_net = false;
    for (int i = get_n + 1; i < node_n; i++) {
        const ggml_tensor * node = cgraph->nodes[i];
        if (node == state) {
            only_the_net = ggml_node_get_use_count(cgraph, i) == 1 && (node->flags & GGML_TENSOR_FLAG_OUTPUT) == 0;
        } else if (node->view_src == all && !ggml_op_is_empty(node->op) && !ggml_is_empty(node)) {
            return false;
        }
    }
    return only_the_net;
}

// Whether no sequence's new states go where another's state is still to be read. New sequences read the same zeros, which lie
// where the state of one of them will be.
static bool apart(const ggml_tensor * get, const ggml_tensor * net, const ggml_tensor * cpy) {
    const int64_t n        = ggml_nelements(get->src[1]);
    const int64_t n_states = std::min<int64_t>(net->src[2]->ne[2], ggml_get_op_params_i32(net, 0));

    const auto read    = [&](int64_t s) {
        return (const char *) get->src[0]->data + ((const int32_t *) get->src[1]->data)[s]*get->src[0]->nb[1];
    };
    const auto written = [&](int64_t s, int64_t k) { return (const char *) cpy->data + s*cpy->nb[1] + k*cpy->nb[2]; };

    for (int64_t s = 0; s < n; s++) {
        for (int64_t i = 0; i < n*n_states; i++) {
            if (i/n_states != s && read(s) == written(i/n_states, i%n_states)) {
                return false;
            }
        }
    }
    return true;
}

// A parameter that the operation does not have: whether its data holds pointers.
static int32_t & holds_pointers(const ggml_tensor * get) {
    return const_cast<ggml_tensor *>(get)->op_params[GGML_MAX_OP_PARAMS/sizeof(int32_t) - 1];
}

// The data of the GET_ROWS holds pointers to the rows instead of copies. They are written now: the memory of the rows' numbers
// may be reused before the delta net is computed.
int leave_state_in_place(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params) {
    const ggml_tensor * get = cgraph->nodes[node_n];

    int net_n = node_n + 1;
    while (net_n < cgraph->n_nodes && cgraph->nodes[net_n]->op != GGML_OP_GATED_DELTA_NET) {
        net_n++;
    }
    if (net_n == cgraph->n_nodes || !can_read_in_place(cgraph, node_n, net_n)) {
        return 0;
    }
    const int  n_cpy    = cpy_of_states(cgraph, net_n);
    const bool in_place = n_cpy == 0 || apart(get, cgraph->nodes[net_n], cgraph->nodes[net_n + n_cpy]);
    if (params->ith == 0) {
        holds_pointers(get) = in_place;
    }
    if (!in_place) {
        return 0;
    }
    if (params->ith == 0) {
        const ggml_tensor * rows = get->src[0];
        for (int64_t s = 0; s < ggml_nelements(get->src[1]); s++) {
            const int64_t i_row = ((const int32_t *) get->src[1]->data)[s];
            GGML_ASSERT(i_row >= 0 && i_row < rows->ne[1]);
            ((const float **) get->data)[s] = (const float *) ((const char *) rows->data + i_row*rows->nb[1]);
        }
    }
    return 1;
}

// The states that a GATED_DELTA_NET reads: its data, or the rows that leave_state_in_place() left pointers to.
static state_source states_of(const ggml_cgraph * cgraph, int node_n) {
    const ggml_tensor * state = cgraph->nodes[node_n]->src[5];

    for (int i = node_n - 1; i >= 0 && cgraph->nodes[i]->op != GGML_OP_GATED_DELTA_NET; i--) {
        if (cgraph->nodes[i] == state->src[0]) {
            if (can_read_in_place(cgraph, i, node_n) && holds_pointers(cgraph->nodes[i])) {
                return state_source((const float * const *) state->data);
            }
            break;
        }
    }
    return state_source(state);
}

int compute_delta_net_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params) {
    ggml_tensor *      net    = cgraph->nodes[node_n];
    const state_source states = states_of(cgraph, node_n);
    const int          n_cpy  = cpy_of_states(cgraph, node_n);

    if (compute_delta_net(params, net, states, n_cpy > 0 ? cgraph->nodes[node_n + n_cpy] : nullptr)) {
        return 1 + n_cpy;
    }

    // llama.cpp's own kernel: copies of the tensors tell it where the state lies
    ggml_tensor moved_net   = *net;
    ggml_tensor moved_state = *net->src[5];
    moved_state.data = (void *) states.of(0);
    moved_net.src[5] = &moved_state;
    ggml_compute_forward_gated_delta_net(params, &moved_net);
    return 1;
}

}  // namespace pymtp
