// Keeps several graphs. A llama_context keeps only one, so batches that alternate in size would rebuild and reallocate
// a graph each time, which takes longer than a small model's token.
#include "extension.h"

#include "llama-model.h"

#include <algorithm>

void pymtp_extension::swap_slot(graph_slot & slot) {
    std::swap(ctx.sched,              slot.sched);
    std::swap(ctx.gf_res_prev,        slot.gf_res_prev);
    std::swap(ctx.gf_res_prev_active, slot.gf_res_prev_active);
}

// Returns an upper bound for the nodes and weights of a slot's graph. Hash tables and a graph's tensors take memory by
// this number; graph_max_nodes() is a bound for prompts with unfused delta nets, and would waste several MB for each
// graph.
uint32_t pymtp_extension::max_graph_nodes(uint32_t n_steps) const {
    const uint32_t n_prompt = ggml_graph_n_nodes(ctx.gf_res_reserve->get_gf()); // nodes for the largest ubatch

    uint32_t n = n_prompt + n_prompt/4 + 256 + ctx.model.n_tensors();
    if (ctx.cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        n += 128*n_steps; // a chain has a block for each step
    }
    return n;
}

void pymtp_extension::prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs) {
    const uint32_t max_nodes = max_graph_nodes(n_steps);

    // The scheduler's tables are sized for this batch: clearing tables for the largest ubatch would take longer than a
    // small model's token. A slot that changes to another batch size frees its buffer, which otherwise would only
    // grow.
    if (max_nodes > slot.max_nodes || n_tokens != slot.n_tokens) {
        ctx.synchronize();

        slot           = {};
        slot.max_nodes = max_nodes;
        slot.n_tokens  = n_tokens;
        slot.sched.reset(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(),
                ctx.backend_ptrs.size(), max_nodes, /*parallel =*/ false, ctx.cparams.op_offload));
    }
    if (auto & result = slot.gf_res_prev[outputs]; !result) {
        result.reset(new llm_graph_result(slot.max_nodes));
    }
}
