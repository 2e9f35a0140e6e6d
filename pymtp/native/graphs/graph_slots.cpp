// Keeps several graphs for a context. A llama_context keeps only one, so when batches alternate in size, a graph would
// be rebuilt and reallocated each time, which takes longer than a token of a small model.
#include "extension.h"

#include "llama-model.h"

#include <algorithm>

void pymtp_extension::swap_slot(graph_slot & slot) {
    std::swap(ctx.sched,              slot.sched);
    std::swap(ctx.gf_res_prev,        slot.gf_res_prev);
    std::swap(ctx.gf_res_prev_active, slot.gf_res_prev_active);
}

// Returns an upper bound for the number of nodes and weights of a slot's graph, from which the memory for hash tables
// and tensors is computed. llama.cpp's graph_max_nodes() would waste several MB for each graph, because it allows for
// prompts with unfused delta nets.
static uint32_t max_graph_nodes(const llama_context & ctx, uint32_t n_steps) {
    // number of nodes of the graph for the largest ubatch
    const uint32_t n_prompt = ggml_graph_n_nodes(ctx.get_gf_res_reserve()->get_gf());

    uint32_t n = n_prompt + n_prompt/4 + 256 + ctx.get_model().n_tensors();
    if (ctx.get_cparams().ctx_type == LLAMA_CONTEXT_TYPE_MTP) {
        n += 128*n_steps; // a chain contains the head's block once for each step
    }
    return n;
}

void pymtp_extension::prepare_slot(graph_slot & slot, uint32_t n_tokens, uint32_t n_steps, bool outputs) {
    const uint32_t max_nodes = max_graph_nodes(ctx, n_steps);

    // The scheduler's tables are made for the size of this batch, because clearing tables for the largest ubatch would
    // take longer than a token of a small model. When a slot changes to another batch size, its buffer is freed;
    // otherwise the buffer could only grow.
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
