// Graphs that are kept. A context of llama.cpp keeps one; where batches of different sizes come by turns, each change would
// build a graph anew and lay it out: more than a token's worth of time for a small model.
#include "extension.h"

#include "llama-model.h"

#include <algorithm>

void pymtp_extension::swap_slot(graph_slot & slot) {
    std::swap(ctx.sched,              slot.sched);
    std::swap(ctx.gf_res_prev,        slot.gf_res_prev);
    std::swap(ctx.gf_res_prev_active, slot.gf_res_prev_active);
}

// The most nodes and weights of a slot's graph. Tables and a graph's tensors take memory by this number: graph_max_nodes() is
// for prompts whose delta nets are not fused, and would make a kept graph take several MB that it never uses.
uint32_t pymtp_extension::most_nodes(uint32_t n_steps) const {
    const uint32_t n_prompt = ggml_graph_n_nodes(ctx.gf_res_reserve->get_gf()); // of the largest ubatch

    uint32_t n = n_prompt + n_prompt/4 + 256 + ctx.model.n_tensors();
    if (ctx.cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        n += 128*n_steps; // a chain has a block for each step
    }
    return n;
}

void pymtp_extension::prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs) {
    const uint32_t max_nodes = most_nodes(n_steps);

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
