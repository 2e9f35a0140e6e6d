#include "draft_block.h"

#include "reduced_output.h"

#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

struct pymtp_draft_block::heads {
    ggml_tensor * q;
    ggml_tensor * gate;
    ggml_tensor * k;
    ggml_tensor * v;
};

pymtp_draft_block::pymtp_draft_block(const llm_graph_context & graph, const llama_model & model) :
    graph(graph), model(model), ctx(graph.ctx0), il(graph.hparams.n_layer()), layer(model.layers[il]),
    n_embd_head(graph.n_embd_head_v) {
    GGML_ASSERT(layer.nextn.eh_proj && layer.nextn.enorm && layer.nextn.hnorm);
}

ggml_tensor * pymtp_draft_block::embed(ggml_tensor * tokens) const {
    return ggml_get_rows(ctx, layer.nextn.embed_tokens ? layer.nextn.embed_tokens : model.tok_embd, tokens);
}

ggml_tensor * pymtp_draft_block::join(ggml_tensor * embd, ggml_tensor * hidden) const {
    embd   = graph.build_norm(embd,   layer.nextn.enorm, nullptr, LLM_NORM_RMS, il);
    hidden = graph.build_norm(hidden, layer.nextn.hnorm, nullptr, LLM_NORM_RMS, il);

    ggml_tensor * cur = graph.build_lora_mm(layer.nextn.eh_proj, ggml_concat(ctx, embd, hidden, 0),
            layer.nextn.eh_proj_s);
    graph.cb(cur, "mtp_eh_proj", il);

    return cur;
}

ggml_tensor * pymtp_draft_block::rope(ggml_tensor * cur, ggml_tensor * pos) const {
    if (graph.hparams.n_pos_per_embd() == 1) { // qwen3next, which has no M-RoPE
        return ggml_rope_ext(ctx, cur, pos, nullptr, graph.n_rot, graph.rope_type, graph.n_ctx_orig, graph.freq_base,
                graph.freq_scale, graph.ext_factor, graph.attn_factor, graph.beta_fast, graph.beta_slow);
    }
    int sections[4];
    std::copy_n(graph.hparams.rope_sections.begin(), 4, sections);

    return ggml_rope_multi(ctx, cur, pos, nullptr, graph.n_rot, sections, graph.rope_type, graph.n_ctx_orig,
            graph.freq_base, graph.freq_scale, graph.ext_factor, graph.attn_factor, graph.beta_fast, graph.beta_slow);
}

// Builds query, K and V of all rows. store_kv() does not add the query to the graph, so it is not computed there.
pymtp_draft_block::heads pymtp_draft_block::project(ggml_tensor * cur, ggml_tensor * pos) const {
    cur = graph.build_norm(cur, layer.attn_norm, nullptr, LLM_NORM_RMS, il);
    graph.cb(cur, "mtp_attn_norm", il);

    // In the projection's result, the query of each attention head is followed by the gate of that head.
    auto [qg, k, v] = graph.build_qkv(layer, cur, 2*n_embd_head, graph.n_head, n_embd_head, graph.n_head_kv,
            n_embd_head, graph.n_head_kv, il, /*reshape =*/ false);
    graph.cb(qg, "mtp_Qcur_full", il);

    const size_t  size = ggml_row_size(qg->type, n_embd_head);
    const int64_t n    = cur->ne[1];

    const auto half = [&](size_t offset) {
        return ggml_view_3d(ctx, qg, n_embd_head, graph.n_head, n, 2*size, 2*size*graph.n_head, offset);
    };
    ggml_tensor * q    = graph.build_norm(half(0), layer.attn_q_norm, nullptr, LLM_NORM_RMS, il);
    ggml_tensor * gate = ggml_cont_2d(ctx, half(size), n_embd_head*graph.n_head, n);

    k = ggml_reshape_3d(ctx, k, n_embd_head, graph.n_head_kv, n);
    k = graph.build_norm(k, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);
    v = ggml_reshape_3d(ctx, v, n_embd_head, graph.n_head_kv, n);

    return { rope(q, pos), gate, rope(k, pos), v };
}

void pymtp_draft_block::store_kv(
        llm_graph_input_attn_kv * inp, ggml_tensor * embd, ggml_tensor * hidden, ggml_tensor * pos) const {
    heads rows = project(join(embd, hidden), pos);

    // llama.cpp may rotate K and V before it writes them to the cache; attention then expects rotated K and V.
    if (inp->self_k_rot) {
        rows.k = llama_mul_mat_hadamard(ctx, rows.k, inp->self_k_rot);
    }
    if (inp->self_v_rot) {
        rows.v = llama_mul_mat_hadamard(ctx, rows.v, inp->self_v_rot);
    }
    ggml_build_forward_expand(graph.gf, rows.v);
    ggml_build_forward_expand(graph.gf, rows.k);

    ggml_build_forward_expand(graph.gf, inp->mctx->cpy_k(ctx, rows.k, inp->get_k_idxs(), il));
    ggml_build_forward_expand(graph.gf, inp->mctx->cpy_v(ctx, rows.v, inp->get_v_idxs(), il));
}

ggml_tensor * pymtp_draft_block::attend(llm_graph_input_attn_kv * inp, const heads & rows) const {
    const float scale = graph.hparams.f_attention_scale;

    ggml_tensor * cur = graph.build_attn(inp, nullptr, nullptr, nullptr, rows.q, rows.k, rows.v, nullptr, nullptr,
            nullptr, scale == 0.0f ? 1.0f/sqrtf(float(n_embd_head)) : scale, il);
    cur = ggml_mul(ctx, cur, ggml_sigmoid(ctx, rows.gate));
    cur = graph.build_lora_mm(layer.wo, cur, layer.wo_s);
    graph.cb(cur, "mtp_attn_out", il);

    return cur;
}

ggml_tensor * pymtp_draft_block::feed_forward(ggml_tensor * cur) const {
    const auto gated = [&](ggml_tensor * up, ggml_tensor * up_s, ggml_tensor * gate, ggml_tensor * gate_s,
                           ggml_tensor * down, ggml_tensor * down_s) {
        return graph.build_ffn(cur, up, nullptr, up_s, gate, nullptr, gate_s, down, nullptr, down_s, nullptr,
                LLM_FFN_SILU, LLM_FFN_PAR, il);
    };
    if (!layer.ffn_gate_inp) {
        return gated(layer.ffn_up, layer.ffn_up_s, layer.ffn_gate, layer.ffn_gate_s, layer.ffn_down, layer.ffn_down_s);
    }

    ggml_tensor * routed = experts(cur);
    if (!layer.ffn_up_shexp) {
        return routed;
    }

    ggml_tensor * shared = gated(layer.ffn_up_shexp, layer.ffn_up_shexp_s, layer.ffn_gate_shexp, layer.ffn_gate_shexp_s,
            layer.ffn_down_shexp, layer.ffn_down_shexp_s);
    ggml_tensor * share = ggml_sigmoid(ctx, graph.build_lora_mm(layer.ffn_gate_inp_shexp, cur));

    return ggml_add(ctx, routed, ggml_mul(ctx, shared, share));
}

ggml_tensor * pymtp_draft_block::experts(ggml_tensor * cur) const {
    return graph.build_moe_ffn(cur,
            layer.ffn_gate_inp, layer.ffn_up_exps, layer.ffn_gate_exps, layer.ffn_down_exps, /*exp_probs_b =*/ nullptr,
            graph.n_expert, graph.n_expert_used, LLM_FFN_SILU, /*norm_w =*/ true, graph.hparams.expert_weights_scale,
            LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX, il, /*probs_in =*/ nullptr, layer.ffn_gate_up_exps,
            layer.ffn_up_exps_s, layer.ffn_gate_exps_s, layer.ffn_down_exps_s);
}

void pymtp_draft_block::run(
        llm_graph_input_attn_kv * inp, ggml_tensor * embd, ggml_tensor * hidden, ggml_tensor * pos,
        ggml_tensor * out_ids) const {
    const auto & nextn = layer.nextn;

    ggml_tensor * joined = join(embd, hidden);
    ggml_tensor * cur    = ggml_add(ctx, attend(inp, project(joined, pos)), joined);
    graph.cb(cur, "mtp_attn_residual", il);

    ggml_tensor * normed = graph.build_norm(cur, layer.attn_post_norm, nullptr, LLM_NORM_RMS, il);
    cur = ggml_add(ctx, feed_forward(normed), cur);
    graph.cb(cur, "mtp_post_ffn", il);

    // If masked, hidden states are returned only for the rows that are outputs, otherwise for all rows.
    const bool masked = graph.cparams.embeddings_nextn_masked;
    if (out_ids && masked) {
        cur = ggml_get_rows(ctx, cur, out_ids);
    }
    ggml_tensor * last = cur;
    cur = graph.build_norm(cur, nextn.shared_head_norm ? nextn.shared_head_norm : model.output_norm, nullptr,
            LLM_NORM_RMS, -1);

    graph.res->t_h_nextn = graph.cparams.pymtp.pre_norm ? last : cur;
    graph.cb(graph.res->t_h_nextn, "h_nextn", -1);

    if (out_ids && !masked) {
        cur = ggml_get_rows(ctx, cur, out_ids);
    }
    ggml_tensor * scale = nextn.shared_head_head ? nextn.shared_head_head_s : model.output_s;
    cur = graph.cparams.pymtp.reduced_output ? graph.cparams.pymtp.reduced_output->logits(graph, cur, scale)
                                          : graph.build_lora_mm(pymtp_draft_output_layer(model), cur, scale);
    graph.cb(cur, "result_output", -1);

    graph.res->t_logits = cur;
}
