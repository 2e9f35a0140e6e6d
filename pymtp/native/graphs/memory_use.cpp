// Sums up the memory of a context by buffer type: memory in use, or, for a model made without memory, the memory that
// it would use.
#include "extension.h"

#include "llama-batch.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"

#include <algorithm>

namespace {

void add_tensor(pymtp_bytes_by_buffer & sum, const ggml_tensor * t) {
    ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
    sum[buft] += GGML_PAD(ggml_backend_buft_get_alloc_size(buft, t), ggml_backend_buft_get_alignment(buft));
}

} // namespace

// Adds up the sizes of tensors instead of buffers: the buffer of a mapped file is as large as the file, and so includes
// weights that were repacked into other buffers.
pymtp_bytes_by_buffer pymtp_extension::weights_bytes() const {
    pymtp_bytes_by_buffer sum;
    for (const auto & [name, t] : ctx.model.tensors_by_name) {
        add_tensor(sum, t);
    }
    return sum;
}

pymtp_bytes_by_buffer pymtp_extension::states_bytes() const {
    if (!states) {
        return {};
    }
    pymtp_bytes_by_buffer sum = replay ? replay->bytes() : pymtp_bytes_by_buffer();
    if (!ctx.model.hparams.no_alloc) {
        for (const auto & [buft, size] : states->memory_breakdown()) {
            sum[buft] += size;
        }
        return sum;
    }
    for (const auto * layers : { &states->r_l, &states->s_l, &states->p_l }) {
        for (ggml_tensor * t : *layers) {
            if (t) {
                add_tensor(sum, t);
            }
        }
    }
    return sum;
}

pymtp_bytes_by_buffer pymtp_extension::pending_hidden_bytes() const {
    if (!pending_buf) {
        return {};
    }
    ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(pending_buf.get());
    return { { buft, ctx.model.hparams.no_alloc ? ggml_backend_alloc_ctx_tensors_from_buft_size(pending_ctx.get(), buft)
                                                : ggml_backend_buffer_get_size(pending_buf.get()) } };
}

pymtp_memory_parts pymtp_extension::memory() const {
    pymtp_memory_parts parts;
    for (const auto & [buft, data] : ctx.memory_breakdown()) {
        parts.compute[buft] += data.compute;
    }
    for (const graph_slot & slot : slots) {
        for (size_t i = 0; slot.sched && i < ctx.backend_ptrs.size(); ++i) {
            parts.compute[ggml_backend_sched_get_buffer_type(slot.sched.get(), ctx.backend_ptrs[i])] +=
                ggml_backend_sched_get_buffer_size(slot.sched.get(), ctx.backend_ptrs[i]);
        }
    }
    parts.weights        = weights_bytes();
    parts.kv             = kv->memory_breakdown();
    parts.states         = states_bytes();
    parts.pending_hidden = pending_hidden_bytes();
    if (reduced_output) {
        parts.reduced_output = reduced_output->bytes();
    }
    return parts;
}

llama_memory_context_ptr pymtp_extension::make_memory_context(const llama_ubatch & ubatch) const {
    auto * hybrid = dynamic_cast<llama_memory_hybrid *>(ctx.memory.get());
    llama_kv_cache::slot_info_vec_t cells = { kv->find_slot(ubatch, /*cont =*/ false) };
    std::vector<llama_ubatch> ubatches = { ubatch };
    if (hybrid) {
        return std::make_unique<llama_memory_hybrid_context>(hybrid, std::move(cells), std::move(ubatches));
    }
    return std::make_unique<llama_kv_cache_context>(kv, std::move(cells), std::move(ubatches));
}

pymtp_bytes_by_buffer pymtp_extension::planned_compute(int32_t n_seqs, int32_t n) {
    const int32_t n_tokens = n_seqs*n;

    // The ubatch is planned in empty caches, but n_kv is set below to the size of the cache, as for a full cache.
    llama_batch_allocr balloc(ctx.model.hparams.n_pos_per_embd());
    llama_ubatch ubatch = balloc.ubatch_reserve(n, n_seqs);
    for (int32_t i = 0; i < n_tokens; ++i) {
        ubatch.pos[i]      = 1 + i%n;
        ubatch.n_seq_id[i] = 1;
        ubatch.seq_id[i]   = ubatch.seq_id_unq + i/n;
    }
    if (settings().pending_hidden) {
        find_head_cells(ubatch);
    }
    const auto mctx = make_memory_context(ubatch);
    mctx->apply();
    cells_of(*mctx).n_kv = kv->get_size();

    graph_slot slot;
    prepare_slot(slot, n_tokens, n, /*outputs =*/ true);
    llm_graph_result_ptr reserved = std::move(slot.gf_res_prev[true]);

    std::swap(ctx.sched,          slot.sched);
    std::swap(ctx.gf_res_reserve, reserved);
    settings().has_replay = true;

    std::vector<size_t> sizes(ctx.backend_ptrs.size());
    ctx.graph_reserve(n_tokens, n_seqs, n_tokens, mctx.get(), /*split_only =*/ true, sizes.data());

    for (int32_t seq = 0; seq < n_seqs; ++seq) {
        ctx.memory->seq_rm(seq, -1, -1);
        if (draft_extension) {
            draft_extension->ctx.memory->seq_rm(seq, -1, -1);
        }
    }
    std::swap(ctx.gf_res_reserve, reserved);
    std::swap(ctx.sched,          slot.sched);

    pymtp_bytes_by_buffer sum;
    for (size_t i = 0; i < sizes.size(); ++i) {
        sum[ggml_backend_sched_get_buffer_type(slot.sched.get(), ctx.backend_ptrs[i])] += sizes[i];
    }
    return sum;
}

int64_t pymtp_extension::output_buffer_bytes() const {
    return ctx.buf_output ? ggml_backend_buffer_get_size(ctx.buf_output.get()) : 0;
}
