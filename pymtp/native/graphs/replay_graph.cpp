// Builds the nodes that read and write the memory of recurrent layers in a target's graph.
//
// In host memory, a single operation does the whole work of a delta net, see kernels/delta_net/delta_net.cpp. Other
// devices use llama.cpp's operation twice, for the tokens to replay and for the new tokens. Sequences with fewer tokens
// to replay are padded with rows of zeros, which leave the state unchanged.
#include "extension.h"
#include "pending_hidden.h"

#include "llama-graph.h"
#include "llama-model.h"

namespace {

// The graph inputs with numbers of rows, which are the same for all layers.
class input_replay : public llm_graph_input_i {
public:
    explicit input_replay(const pymtp_replay & replay) : replay(replay) {}

    void set_input(const llama_ubatch * ubatch) override;

    // Always true, because the shape of the ubatch and the settings are compared elsewhere.
    bool can_reuse(const llm_graph_params &) override { return true; }

    // I32 [n*n_seqs]: rows with the convolution's inputs of the n tokens before the ubatch
    ggml_tensor * before = nullptr;
    ggml_tensor * conv   = nullptr; // I32 [n*n_seqs]: rows to store the convolution's inputs of the last n tokens in

    // I32 [max_pending, n_seqs]: rows with the delta net's inputs to replay, padded with the row of zeros
    ggml_tensor * pending = nullptr;
    // I32 [n_seq_tokens*n_seqs]: rows to store the delta net's inputs of the ubatch's tokens in
    ggml_tensor * net     = nullptr;

private:
    const pymtp_replay & replay;
};

void input_replay::set_input(const llama_ubatch * ubatch) {
    const int32_t n_tokens = ubatch->n_seq_tokens;

    // Fills a tensor that has n numbers for each sequence: number i of a sequence is row(seq, position of the
    // sequence's first token in the ubatch, i, n).
    const auto set = [&](ggml_tensor * t, const auto & row) {
        if (!t || !t->buffer) { // the input is not part of this graph, or no node uses it
            return;
        }
        const int32_t n = ggml_nelements(t)/ubatch->n_seqs;

        std::vector<int32_t> data;
        for (uint32_t s = 0; s < ubatch->n_seqs; ++s) {
            for (int32_t i = 0; i < n; ++i) {
                data.push_back(row(ubatch->seq_id[s*n_tokens][0], ubatch->pos[s*n_tokens], i, n));
            }
        }
        ggml_backend_tensor_set(t, data.data(), 0, data.size()*sizeof(int32_t));
    };
    set(before,
            [&](llama_seq_id seq, llama_pos pos, int32_t i, int32_t n) { return replay.conv_row(seq, pos - n + i); });
    set(conv,   [&](llama_seq_id seq, llama_pos pos, int32_t i, int32_t n) {
        return replay.conv_row(seq, pos + n_tokens - n + i);
    });
    set(net,    [&](llama_seq_id seq, llama_pos pos, int32_t i, int32_t) { return replay.net_row(seq, pos + i); });

    set(pending, [&](llama_seq_id seq, llama_pos pos, int32_t i, int32_t) {
        const int32_t n = replay.n_pending(seq);
        return i < n ? replay.net_row(seq, pos - n + i) : replay.net_zeros();
    });
}

input_replay & get_input(const llm_graph_context & graph, const pymtp_replay & replay) {
    for (const auto & input : graph.res->inputs) {
        if (auto * found = dynamic_cast<input_replay *>(input.get())) {
            return *found;
        }
    }
    const int64_t n_seqs       = graph.ubatch.n_seqs;
    const int64_t n_seq_tokens = graph.ubatch.n_seq_tokens;
    const int64_t n_before     = graph.hparams.ssm_d_conv - 1;

    auto input = std::make_unique<input_replay>(replay);
    const auto make = [&](int64_t n, int64_t n_rows) {
        ggml_tensor * t = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_I32, n, n_rows);
        ggml_set_input(t);
        return t;
    };
    const bool defers_state = replay.defers_state(n_seq_tokens);
    input->before = make(n_before*n_seqs, 1);
    input->conv   = make((defers_state ? n_seq_tokens : std::min(n_seq_tokens, n_before))*n_seqs, 1);
    if (replay.max_rewind > 0) {
        input->pending = make(replay.max_pending(), n_seqs);
    }
    if (defers_state) {
        input->net = make(n_seq_tokens*n_seqs, 1);
    }
    return static_cast<input_replay &>(*graph.res->add_input(std::move(input)));
}

// Runs ggml_gated_delta_net, and splits its result into the output and the new states.
struct net_result {
    ggml_tensor * output; // [head_v_dim, n_v_heads, n_seq_tokens, n_seqs]
    ggml_tensor * states; // [head_v_dim*head_v_dim*n_v_heads, n_seqs]

    net_result(const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
            ggml_tensor * beta, ggml_tensor * state, int il) {
        ggml_tensor * net = ggml_gated_delta_net(graph.ctx0, q, k, v, g, beta, state, 1);
        graph.res->add_fused_node({v->ne[2] > 1 ? LLM_FUSED_OP_GDN_CH : LLM_FUSED_OP_GDN_AR, net, il});

        const int64_t n_v     = v->ne[0]*v->ne[1];
        const int64_t n_state = v->ne[0]*n_v;
        const size_t  row     = ggml_row_size(GGML_TYPE_F32, n_v);
        output = ggml_view_4d(graph.ctx0, net, v->ne[0], v->ne[1], v->ne[2], v->ne[3],
                ggml_row_size(GGML_TYPE_F32, v->ne[0]), row, row*v->ne[2], 0);
        states = ggml_view_2d(graph.ctx0, net, n_state, v->ne[3], ggml_row_size(GGML_TYPE_F32, n_state),
                row*v->ne[2]*v->ne[3]);
    }

    // Copies the new states to `place`, and returns a view of the copy. Later nodes must read the states from this
    // view, because CUDA's kernel may write them only there.
    ggml_tensor * store(const llm_graph_context & graph, ggml_tensor * place) const {
        ggml_tensor * rows = ggml_view_2d(graph.ctx0, place, states->ne[0], states->ne[1], states->nb[1], 0);
        rows = ggml_cpy(graph.ctx0, states, rows);
        ggml_build_forward_expand(graph.gf, rows);
        return rows;
    }
};

} // namespace

ggml_tensor * pymtp_state_in_place(
        const llm_graph_context & graph, ggml_tensor * s_copy, ggml_tensor * states, int64_t n_seqs, uint32_t head) {
    if (!graph.cparams.pymtp.replay) {
        return nullptr;
    }
    ggml_build_forward_expand(graph.gf, s_copy); // an input must be allocated even if no node uses it

    return ggml_view_2d(graph.ctx0, states, states->ne[0], n_seqs, states->nb[1], head*states->nb[1]);
}

ggml_tensor * pymtp_build_conv_input(const llm_graph_context & graph, ggml_tensor * inputs, int il) {
    const pymtp_replay * replay = graph.cparams.pymtp.replay;
    if (!replay) {
        return nullptr;
    }
    ggml_context *       ctx    = graph.ctx0;
    const input_replay & input  = get_input(graph, *replay);
    ggml_tensor *        stored = replay->layer_at(il).conv;
    const int64_t        n_seqs = inputs->ne[2];

    ggml_tensor * before = ggml_get_rows(ctx, stored, input.before);
    before = ggml_reshape_3d(ctx, before, before->ne[0], before->ne[1]/n_seqs, n_seqs);

    ggml_tensor * all = ggml_concat(ctx, ggml_transpose(ctx, before), ggml_transpose(ctx, inputs), 0);
    graph.cb(all, "conv_input", il);
    // added now, so that the rows are read before the next nodes overwrite them
    ggml_build_forward_expand(graph.gf, all);

    ggml_tensor * last = pymtp_last_rows(ctx, inputs, input.conv->ne[0]/n_seqs);
    ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx, stored, last, input.conv));

    return all;
}

static ggml_tensor * build_on_host(
        const llm_graph_context & graph, const input_replay & input, ggml_tensor * stored, ggml_tensor * q,
        ggml_tensor * k, ggml_tensor * v, ggml_tensor * g, ggml_tensor * beta, ggml_tensor * state) {
    ggml_tensor * net = ggml_new_tensor(graph.ctx0, GGML_TYPE_F32, 4, v->ne);

    net->op = GGML_OP_GATED_DELTA_NET;
    ggml_tensor * src[] = { q, k, v, g, beta, state, stored, input.pending, input.net };
    std::copy(std::begin(src), std::end(src), net->src);
    // Assigned to the CPU, because the operation writes to host memory, and the scheduler might choose another device.
    ggml_backend_sched_set_tensor_backend(graph.sched, net, graph.backend_cpu);

    return net;
}

static ggml_tensor * build_on_device(
        const llm_graph_context & graph, const input_replay & input, ggml_tensor * stored, ggml_tensor * q,
        ggml_tensor * k, ggml_tensor * v, ggml_tensor * g, ggml_tensor * beta, ggml_tensor * state, int il) {
    ggml_context * ctx = graph.ctx0;

    const int64_t n_seqs   = v->ne[3];
    const int64_t n_tokens = v->ne[2]*n_seqs;
    const int64_t n_heads  = v->ne[1];
    const int64_t n_v      = v->ne[0]*n_heads;
    const int64_t n_k      = stored ? stored->ne[0] - n_v - 2*n_heads : 0;

    const auto float_bytes = [](int64_t i) { return i*sizeof(float); };

    ggml_tensor * initial = state;
    if (stored && graph.cparams.pymtp.has_replay) {
        ggml_tensor * rows = ggml_get_rows(ctx, stored,
                ggml_reshape_1d(ctx, input.pending, ggml_nelements(input.pending)));

        const auto part = [&](int64_t ne0, int64_t ne1, int64_t offset) {
            const int64_t n = input.pending->ne[0];
            return ggml_view_4d(ctx, rows, ne0, ne1, n, n_seqs, float_bytes(ne0), rows->nb[1], rows->nb[1]*n,
                    float_bytes(offset));
        };
        ggml_tensor * k_kept    = part(k->ne[0], n_k/k->ne[0], 0);
        ggml_tensor * v_kept    = part(v->ne[0], n_heads, n_k);
        ggml_tensor * g_kept    = ggml_cont(ctx, part(1, n_heads, n_k + n_v));
        ggml_tensor * beta_kept = ggml_cont(ctx, part(1, n_heads, n_k + n_v + n_heads));

        const net_result replayed(graph, k_kept, k_kept, v_kept, g_kept, beta_kept, state, il);
        initial = input.net ? replayed.store(graph, state) : replayed.states;
        initial = ggml_reshape_4d(ctx, initial, state->ne[0], state->ne[1], state->ne[2], n_seqs);
    }

    const net_result result(graph, q, k, v, g, beta, initial, il);
    if (!input.net) {
        result.store(graph, state);
        return result.output;
    }
    // added now, so that the inputs to replay are read before the next nodes overwrite them
    ggml_build_forward_expand(graph.gf, result.output);

    const auto keep = [&](ggml_tensor * t, int64_t n, int64_t offset) {
        ggml_tensor * rows = ggml_view_2d(ctx, t, n, n_tokens, t->nb[2], 0);
        ggml_tensor * to   = ggml_view_2d(ctx, stored, n, stored->ne[1], stored->nb[1], float_bytes(offset));
        ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx, to, rows, input.net));
    };
    keep(k,    n_k,     0);
    keep(v,    n_v,     n_k);
    keep(g,    n_heads, n_k + n_v);
    keep(beta, n_heads, n_k + n_v + n_heads);

    return result.output;
}

ggml_tensor * pymtp_build_delta_net(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
        ggml_tensor * beta, ggml_tensor * state, int il) {
    const pymtp_replay * replay = graph.cparams.pymtp.replay;
    if (!replay) {
        return nullptr;
    }
    const pymtp_replay::layer & layer = replay->layer_at(il);
    const input_replay &        input = get_input(graph, *replay);

    const bool on_host = layer.on_host && !graph.cparams.pymtp.device_ops;

    ggml_tensor * output = on_host ? build_on_host(graph, input, layer.net, q, k, v, g, beta, state)
                                   : build_on_device(graph, input, layer.net, q, k, v, g, beta, state, il);
    graph.cb(output, "attn_output", il);
    return output;
}
