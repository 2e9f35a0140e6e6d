// Builds the three graphs of a draft context: a chain of draft steps; a graph that only writes K and V of tokens that
// the head has not processed yet; and a graph that takes hidden states from the host.
#include "draft_block.h"
#include "draft_graphs.h"
#include "extension.h"
#include "pending_hidden.h"
#include "sample.h"

#include "llama-model.h"

namespace {

// Adds the graph inputs for n tokens, and returns them with the pending hidden states that the tokens are combined
// with.
std::pair<pymtp_input_pending *, ggml_tensor *> take_hidden(const llm_graph_context & graph, int64_t n) {
    ggml_tensor * kept = graph.cparams.pymtp.take_hidden;

    auto inp = std::make_unique<pymtp_input_pending>(graph.hparams.n_pos_per_embd(), kept,
            graph.cparams.pymtp.extension->images_of);

    inp->tokens = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n);
    inp->rows   = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n);
    ggml_set_input(inp->tokens);
    ggml_set_input(inp->rows);

    ggml_tensor * hidden = ggml_get_rows(graph.ctx0, pymtp_flat_rows(graph.ctx0, kept), inp->rows);

    return { static_cast<pymtp_input_pending *>(graph.res->add_input(std::move(inp))), hidden };
}

void build_catch_up(const llm_graph_context & graph, const llama_model & model) {
    const pymtp_draft_block block(graph, model);

    auto [inp, hidden] = take_hidden(graph, graph.n_tokens);

    auto * attn = graph.build_attn_inp_kv();
    block.store_kv(attn, block.embed(inp->tokens), hidden, graph.build_inp_pos());
}

// Builds a chain: all draft steps in one graph. Each step processes one token of each sequence.
void build_chain(const llm_graph_context & graph, const llama_model & model, const llm_graph_params & params) {
    const int64_t n_seqs  = params.ubatch.n_seqs_unq;
    const int64_t n_steps = graph.n_tokens/n_seqs;
    const int64_t n_pos   = graph.hparams.n_pos_per_embd();

    llm_graph_params step_params = params;
    step_params.ubatch.n_tokens     = n_seqs;
    step_params.ubatch.n_seq_tokens = 1;
    step_params.ubatch.n_seqs       = n_seqs;
    step_params.n_outputs           = n_seqs;

    const llm_graph_context step(step_params);
    const pymtp_draft_block block(step, model);

    ggml_context * ctx = graph.ctx0;

    auto [inp, hidden] = take_hidden(graph, n_seqs);

    inp->pos = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_pos*n_seqs, n_steps);
    ggml_set_input(inp->pos);

    const auto * attn = graph.build_attn_inp_kv();

    ggml_tensor * token = inp->tokens;
    pymtp_sampled samples;

    for (int64_t i = 0; i < n_steps; ++i) {
        // Returns the part of a tensor that belongs to this step. The tensor has n elements for each token, with all
        // tokens of a sequence before those of the next sequence.
        const auto part = [&](ggml_tensor * t, int64_t n) {
            ggml_tensor * v = ggml_view_2d(ctx, t, n, n_seqs, n_steps*n*t->nb[0], i*n*t->nb[0]);
            if (n_seqs == 1) {
                return ggml_reshape_1d(ctx, v, n);
            }
            return n == 1 ? ggml_transpose(ctx, v) : ggml_reshape_1d(ctx, ggml_cont(ctx, v), n*n_seqs);
        };
        const auto mask = [&](ggml_tensor * t) {
            ggml_tensor * v = ggml_view_4d(ctx, t, t->ne[0], 1, 1, t->ne[3], t->nb[1], t->nb[2], t->nb[3], i*t->nb[1]);
            return t->ne[3] == 1 ? v : ggml_cont(ctx, v);
        };

        // The mask of a step hides the cells that only later steps will write.
        llm_graph_input_attn_kv step_inp(graph.hparams, graph.cparams, attn->mctx);
        step_inp.self_k_idxs      = part(attn->self_k_idxs, 1);
        step_inp.self_v_idxs      = part(attn->self_v_idxs, attn->self_v_idxs->ne[0]/graph.n_tokens);
        step_inp.self_kq_mask_cnv = mask(attn->self_kq_mask_cnv);
        step_inp.self_k_rot       = attn->self_k_rot;
        step_inp.self_v_rot       = attn->self_v_rot;

        ggml_tensor * pos = ggml_view_1d(ctx, inp->pos, n_pos*n_seqs, i*inp->pos->nb[1]);

        block.run(&step_inp, block.embed(token), hidden, pos, /*out_ids =*/ nullptr);

        const pymtp_sampled sampled = pymtp_build_sample(graph, graph.res->t_logits);
        hidden = graph.res->t_h_nextn;
        token  = sampled.tokens;
        samples.append(ctx, sampled);
    }

    graph.res->set_params(params); // restores the parameters of the whole graph, which the steps have replaced
    graph.res->t_h_nextn = nullptr;
    graph.res->t_logits  = nullptr;
    samples.set_outputs(graph);
}

// Builds the same graph as llama.cpp, except that it uses the configured tap, and that masked hidden states are
// returned only for outputs.
void build_from_host(const llm_graph_context & graph, const llama_model & model) {
    const pymtp_draft_block block(graph, model);

    auto inp = std::make_unique<llm_graph_input_embd_h>(graph.n_embd);

    inp->tokens = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, graph.n_tokens);
    inp->embd   = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_F32, graph.hparams.n_embd_inp(), graph.n_tokens);
    inp->h      = ggml_new_tensor_2d(graph.ctx0, GGML_TYPE_F32, graph.n_embd, graph.n_tokens);
    for (ggml_tensor * t : { inp->tokens, inp->embd, inp->h }) {
        ggml_set_input(t);
    }
    ggml_tensor * embd   = graph.ubatch.token ? block.embed(inp->tokens) : inp->embd;
    ggml_tensor * hidden = inp->h;
    graph.res->add_input(std::move(inp));

    ggml_tensor * pos     = graph.build_inp_pos();
    ggml_tensor * out_ids = graph.build_inp_out_ids();

    block.run(graph.build_attn_inp_kv(), embd, hidden, pos, out_ids);

    ggml_build_forward_expand(graph.gf, graph.res->t_logits);
}

} // namespace

std::unique_ptr<llm_graph_context> pymtp_build_draft_graph(const llama_model & model, const llm_graph_params & params) {
    auto graph = std::make_unique<llm_graph_context>(params);

    if (!params.cparams.pymtp.take_hidden) {
        build_from_host(*graph, model);
    } else if (params.cparams.pymtp.sample == PYMTP_SAMPLE_NONE) {
        build_catch_up(*graph, model);
    } else {
        build_chain(*graph, model, params);
    }
    return graph;
}
