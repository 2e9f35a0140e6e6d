#include "kv_cells.h"

#include "ggml-cpp.h"

std::vector<pymtp_cell_run> pymtp_find_runs(const llama_kv_cells & cells, llama_seq_id seq, llama_pos first,
        llama_pos end) {
    std::vector<pymtp_cell_run> runs;
    const auto & tokens = cells.seq_pos_get(seq);
    for (auto it = tokens.lower_bound({ first, 0 }); it != tokens.end() && it->first < end; ++it) {
        const uint32_t cell = it->second;
        if (!runs.empty() && cell == runs.back().first + runs.back().n) {
            runs.back().n++;
        } else {
            runs.push_back({ cell, 1 });
        }
    }
    return runs;
}

// Returns the view of a layer's V that attention reads. The strides of the view show whether V is stored transposed.
static const ggml_tensor * get_v_view(const llama_kv_cache & kv, ggml_context * ctx, uint32_t il) {
    llama_kv_cache::slot_info first = { /*.s0 =*/ 0, /*.s1 =*/ 0, {}, {} };
    return kv.get_v(ctx, il, /*n_kv =*/ 1, first);
}

std::vector<pymtp_cell_tensor> pymtp_cell_tensors(const llama_kv_cache & kv) {
    std::vector<pymtp_cell_tensor> tensors;

    const std::vector<uint32_t> layers = kv.get_layer_ids();

    const ggml_init_params params = { layers.size()*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    const ggml_context_ptr views(ggml_init(params));
    for (const uint32_t il : layers) {
        const ggml_tensor * v = get_v_view(kv, views.get(), il);
        tensors.push_back({ kv.get_k_storage(il), false });
        tensors.push_back({ v->view_src, v->nb[1] > v->nb[2] });
    }
    return tensors;
}
