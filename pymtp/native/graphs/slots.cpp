// Graphs that are kept. A context of llama.cpp keeps one; where batches of different sizes come by turns, each change would
// build a graph anew and lay it out: more than a token's worth of time for a small model.
#include "extension.h"

#include <algorithm>

void pymtp_extension::swap_slot(graph_slot & slot) {
    std::swap(ctx.sched,              slot.sched);
    std::swap(ctx.gf_res_prev,        slot.gf_res_prev);
    std::swap(ctx.gf_res_prev_active, slot.gf_res_prev_active);
}

void pymtp_extension::prepare_slot(graph_slot & slot, uint32_t n_tokens, bool outputs) {
    uint32_t max_nodes = ctx.graph_max_nodes(n_tokens);
    if (ctx.cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        max_nodes += 128*n_tokens; // a chain has a block for each token
    }

    // a scheduler for as many nodes as such a batch may have: clearing tables for the largest ubatch would take longer than a
    // small model's token. A slot that goes to batches of another size gives back its buffer, which would only grow.
    if (max_nodes > slot.max_nodes || n_tokens != slot.n_tokens) {
        ctx.synchronize();

        slot = {};
        slot.max_nodes = max_nodes;
        slot.n_tokens  = n_tokens;
        slot.sched.reset(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(), ctx.backend_ptrs.size(),
                max_nodes, /*parallel =*/ false, ctx.cparams.op_offload));
    }
    if (auto & result = slot.gf_res_prev[outputs]; !result) {
        result.reset(new llm_graph_result(slot.max_nodes));
    }
}
