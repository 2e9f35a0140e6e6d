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

// Adds up the sizes of tensors instead of buffers: the buffer of a mapped file is as large as the file, and so includes
// weights that were repacked into other buffers.
pymtp_bytes_by_buffer weights_bytes(const llama_model & model) {
    pymtp_bytes_by_buffer sum;
    for (const auto & [name, t] : model.tensors_by_name) {
        add_tensor(sum, t);
    }
    return sum;
}

pymtp_bytes_by_buffer states_bytes(const pymtp_extension & ext) {
    pymtp_bytes_by_buffer sum;
    if (ext.replay) {
        ext.replay->add_bytes(sum);
    }
    if (!ext.ctx.get_model().hparams.no_alloc) {
        for (const auto & [buft, size] : ext.states->memory_breakdown()) {
            sum[buft] += size;
        }
        return sum;
    }
    for (const auto * layers : { &ext.states->r_l, &ext.states->s_l, &ext.states->p_l }) {
        for (ggml_tensor * t : *layers) {
            if (t) {
                add_tensor(sum, t);
            }
        }
    }
    return sum;
}

llama_memory_context_ptr make_memory_context(const pymtp_extension & ext, const llama_ubatch & ubatch) {
    auto * hybrid = dynamic_cast<llama_memory_hybrid *>(ext.ctx.get_memory());
    llama_kv_cache::slot_info_vec_t cells = { ext.kv->find_slot(ubatch, /*cont =*/ false) };
    std::vector<llama_ubatch> ubatches = { ubatch };
    if (hybrid) {
        return std::make_unique<llama_memory_hybrid_context>(hybrid, std::move(cells), std::move(ubatches));
    }
    return std::make_unique<llama_kv_cache_context>(ext.kv, std::move(cells), std::move(ubatches));
}

} // namespace

pymtp_memory_parts pymtp_get_memory(llama_context * ctx) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    pymtp_memory_parts parts;
    parts.weights = weights_bytes(ctx->get_model());
    parts.kv      = ext.kv->memory_breakdown();
    parts.compute = ext.compute_bytes();
    if (ext.states) {
        parts.states = states_bytes(ext);
    }
    if (ext.pending_hidden) {
        ext.pending_hidden->add_bytes(parts.pending_hidden);
    }
    if (ext.reduced_output) {
        ext.reduced_output->add_bytes(parts.reduced_output);
    }
    return parts;
}

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    pymtp_output_bytes bytes = ext.bytes;
    bytes.samples = ext.sampler.bytes();
    bytes.buffer  = ext.output_buffer_bytes();
    return bytes;
}

pymtp_bytes_by_buffer pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n) {
    return pymtp_extension::get(ctx).planned_compute(n_seqs, n);
}

pymtp_bytes_by_buffer pymtp_extension::compute_bytes() const {
    pymtp_bytes_by_buffer sum;
    for (const auto & [buft, data] : ctx.memory_breakdown()) {
        sum[buft] += data.compute;
    }
    for (const graph_slot & slot : slots) {
        for (size_t i = 0; slot.sched && i < ctx.backend_ptrs.size(); ++i) {
            sum[ggml_backend_sched_get_buffer_type(slot.sched.get(), ctx.backend_ptrs[i])] +=
                ggml_backend_sched_get_buffer_size(slot.sched.get(), ctx.backend_ptrs[i]);
        }
    }
    return sum;
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
    const auto mctx = make_memory_context(*this, ubatch);
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
        if (draft) {
            draft->ctx.memory->seq_rm(seq, -1, -1);
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
