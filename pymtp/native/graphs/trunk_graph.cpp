// Builds the end of the trunk's graph: the tap, the fused sync with the head, and the output layer.
#include "draft_block.h"
#include "draft_graphs.h"
#include "extension.h"
#include "pending_hidden.h"
#include "replay.h"
#include "rope_input.h"
#include "sample.h"

#include "llama-model.h"

// Builds the fused sync: writes K and V of the ubatch's tokens to the head's cache (unless that is deferred), and
// stores the last hidden states. Each token is combined with the hidden state of the token before it. The tokens'
// embeddings are reused from the trunk.
static void build_sync(const llm_graph_context & graph, const llama_model & model, ggml_tensor * hidden,
        ggml_tensor * inp_pos) {
    const auto &   settings = graph.cparams.pymtp;
    ggml_context * ctx      = graph.ctx0;

    const int64_t n_embd       = graph.n_embd;
    const int64_t n_seqs       = graph.ubatch.n_seqs;
    const int64_t n_seq_tokens = graph.ubatch.n_seq_tokens;

    // If tokens can be rewound, stores the hidden states of all tokens: whichever token is the last after a rewind, its
    // hidden state is needed.
    const int64_t n_keep = settings.replay && settings.replay->defers_state(n_seq_tokens) ? n_seq_tokens : 1;

    auto inp = std::make_unique<pymtp_input_sync>(graph.hparams, graph.cparams);

    inp->keep = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_seqs*n_keep);
    ggml_set_input(inp->keep);

    ggml_tensor * pending = pymtp_flat_rows(ctx, settings.pending_hidden);

    if (!settings.deferred) {
        inp->self_k_idxs = inp->mctx->build_input_k_idxs(ctx, graph.ubatch);
        inp->self_v_idxs = inp->mctx->build_input_v_idxs(ctx, graph.ubatch);
        inp->self_k_rot  = inp->mctx->build_input_k_rot(ctx);
        inp->self_v_rot  = inp->mctx->build_input_v_rot(ctx);

        inp->take = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_seqs);
        ggml_set_input(inp->take);

        // The first token is combined with a row that an earlier ubatch has stored. The last row of this ubatch is for
        // the first token of the next ubatch.
        ggml_tensor * rows = ggml_get_rows(ctx, pending, inp->take);
        if (n_seq_tokens > 1) {
            rows = ggml_concat(ctx,
                    ggml_reshape_3d(ctx, rows, n_embd, 1, n_seqs),
                    ggml_view_3d(ctx, hidden, n_embd, n_seq_tokens - 1, n_seqs,
                            hidden->nb[1], hidden->nb[1]*n_seq_tokens, 0),
                    1);
            rows = ggml_reshape_2d(ctx, rows, n_embd, graph.n_tokens);
        }
        graph.cb(rows, "mtp_h_shifted", graph.hparams.n_layer());

        const pymtp_draft_block block(graph, model);
        const bool own_table = model.layers[graph.hparams.n_layer()].nextn.embed_tokens && graph.ubatch.token;
        ggml_tensor * embd = own_table ? block.embed(graph.res->t_inp_tokens) : graph.res->t_layer_inp[0];

        block.store_kv(inp.get(), embd, rows, inp_pos);
    }

    ggml_tensor * last = pymtp_last_rows(ctx, ggml_reshape_3d(ctx, hidden, n_embd, n_seq_tokens, n_seqs), n_keep);
    ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx, pending, last, inp->keep));

    graph.res->add_input(std::move(inp));
}

bool pymtp_end_trunk(
        const llm_graph_context & graph, const llama_model & model, ggml_tensor * cur, ggml_tensor * inp_pos,
        ggml_tensor * out_ids) {
    const auto & settings = graph.cparams.pymtp;
    if (!settings.extension) {
        return false;
    }

    // If the tap is after the norm, the norm is applied to all rows, otherwise only to the outputs.
    const auto norm = [&](ggml_tensor * rows) {
        return graph.build_norm(rows, model.output_norm, nullptr, LLM_NORM_RMS, -1);
    };
    if (!settings.pre_norm) {
        cur = norm(cur);
    }
    graph.cb(cur, "h_nextn", -1);
    graph.res->t_h_nextn = cur;
    ggml_build_forward_expand(graph.gf, cur);

    if (settings.pending_hidden) {
        build_sync(graph, model, cur, inp_pos);
    }

    // Without outputs, the output layer is left out: its nodes would be empty, but would still count in reservations
    // and splits of the graph. Inputs must be allocated even if no node uses them.
    if (graph.n_outputs == 0) {
        ggml_build_forward_expand(graph.gf, inp_pos);
        ggml_build_forward_expand(graph.gf, out_ids);
        return true;
    }

    if (!graph.cparams.embeddings_nextn_masked) {
        cur = ggml_get_rows(graph.ctx0, cur, out_ids);
    }
    if (settings.pre_norm) {
        cur = norm(cur);
    }
    graph.cb(cur, "result_norm", -1);
    graph.res->t_embd = cur;

    cur = graph.build_lora_mm(model.output, cur, model.output_s);
    graph.cb(cur, "result_output", -1);
    graph.res->t_logits = cur;
    ggml_build_forward_expand(graph.gf, cur);

    return true;
}

std::unique_ptr<llm_graph_context> pymtp_build_graph(const llama_model & model, const llm_graph_params & params) {
    const auto & settings = params.cparams.pymtp;

    const bool draft = settings.extension && params.gtype == LLM_GRAPH_TYPE_DECODER_MTP &&
        (settings.take_hidden || settings.pre_norm || params.cparams.embeddings_nextn_masked);

    auto graph = draft ? pymtp_build_draft_graph(model, params) : model.build_arch_graph(params);

    if (settings.extension && settings.extension->images_of) {
        pymtp_replace_positions(*graph->res, settings.extension->images_of);
    }
    if (settings.sample != PYMTP_SAMPLE_NONE && graph->res->t_logits) {
        pymtp_build_sample(*graph, graph->res->t_logits).set_outputs(*graph);
    }
    return graph;
}
