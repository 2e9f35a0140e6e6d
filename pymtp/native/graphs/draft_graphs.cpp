// The graphs of a draft context: a chain of drafts, K and V of tokens that the head was left behind by, and a batch whose
// hidden states come from the host.
#include "draft_block.h"
#include "draft_graphs.h"
#include "kept_rows.h"
#include "sample.h"

#include "llama-model.h"

namespace {

// Tokens that go with kept rows: n of the batch, from its first.
std::pair<pymtp_input_kept *, ggml_tensor *> take_rows(const llm_graph_context & graph, int64_t n) {
    ggml_tensor * kept = graph.cparams.pymtp.take_rows;

    auto inp = std::make_unique<pymtp_input_kept>(graph.hparams.n_pos_per_embd(), kept);

    inp->tokens = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n);
    inp->rows   = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I32, n);
    ggml_set_input(inp->tokens);
    ggml_set_input(inp->rows);

    ggml_tensor * hidden = ggml_get_rows(graph.ctx0, pymtp_all_rows(graph.ctx0, kept), inp->rows);

    return { static_cast<pymtp_input_kept *>(graph.res->add_input(std::move(inp))), hidden };
}

void build_late(const llm_graph_context & graph, const llama_model & model) {
    const pymtp_draft_block block(graph, model);

    auto [inp, hidden] = take_rows(graph, graph.n_tokens);

    auto * attn = graph.build_attn_inp_kv();
    block.store(attn, block.embed(inp->tokens), hidden, graph.build_inp_pos());
}

// Each step is a graph for one token of each sequence.
void build_chain(const llm_graph_context & graph, const llama_model & model, const llm_graph_params & params) {
    const int64_t n_seqs  = params.ubatch.n_seqs_unq;
    const int64_t n_steps = graph.n_tokens/n_seqs;
    const int64_t n_pos   = graph.hparams.n_pos_per_embd();

    llm_graph_params one = params;
    one.ubatch.n_tokens     = n_seqs;
    one.ubatch.n_seq_tokens = 1;
    one.ubatch.n_seqs       = n_seqs;
    one.n_outputs           = n_seqs;

    const llm_graph_context step(one);
    const pymtp_draft_block block(step, model);

    ggml_context * ctx = graph.ctx0;

    auto [inp, hidden] = take_rows(graph, n_seqs);

    inp->pos = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_pos*n_seqs, n_steps);
    ggml_set_input(inp->pos);

    const auto * attn = graph.build_attn_inp_kv();

    ggml_tensor * token = inp->tokens;
    pymtp_sampled all;

    for (int64_t i = 0; i < n_steps; ++i) {
        // of a tensor of n elements for each token, sequence after sequence, those of this step's tokens
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

        // positions decide what a step sees: the cells of later ones are filled later, and masked
        llm_graph_input_attn_kv now(graph.hparams, graph.cparams, attn->mctx);
        now.self_k_idxs      = part(attn->self_k_idxs, 1);
        now.self_v_idxs      = part(attn->self_v_idxs, attn->self_v_idxs->ne[0]/graph.n_tokens);
        now.self_kq_mask_cnv = mask(attn->self_kq_mask_cnv);
        now.self_k_rot       = attn->self_k_rot;
        now.self_v_rot       = attn->self_v_rot;

        ggml_tensor * pos = ggml_view_1d(ctx, inp->pos, n_pos*n_seqs, i*inp->pos->nb[1]);

        block.run(&now, block.embed(token), hidden, pos, /*out_ids =*/ nullptr);

        const pymtp_sampled sampled = pymtp_build_sample(graph, graph.res->t_logits);
        hidden = graph.res->t_h_nextn;
        token  = sampled.tokens;
        all.append(ctx, sampled);
    }

    graph.res->set_params(params); // of the whole graph again
    graph.res->t_h_nextn = nullptr;
    graph.res->t_logits  = nullptr;
    all.set_outputs(graph);
}

// As llama.cpp's own graph, but with the tap of our settings, and masked hidden states of the outputs alone.
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

    if (!params.cparams.pymtp.take_rows) {
        build_from_host(*graph, model);
    } else if (params.cparams.pymtp.sample == PYMTP_SAMPLE_NONE) {
        build_late(*graph, model);
    } else {
        build_chain(*graph, model, params);
    }
    return graph;
}
