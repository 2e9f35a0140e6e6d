// Attaches the extension to a context, and implements the functions of pymtp_context.h and pymtp_hooks.h by calling it.
#include "extension.h"

#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <stdexcept>

pymtp_extension::pymtp_extension(llama_context & ctx) : ctx(ctx) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(ctx.memory.get())) {
        kv     = hybrid->get_mem_attn();
        states = hybrid->get_mem_recr();
    } else {
        kv = dynamic_cast<llama_kv_cache *>(ctx.memory.get());
    }
    if (!kv) {
        throw std::runtime_error("the context has no K/V cache of a kind that pymtp knows");
    }
    for (const auto & [buft, size] : kv->memory_breakdown()) {
        kv_on_host &= ggml_backend_buft_is_host(buft);
    }
}

pymtp_extension & pymtp_extension::get(llama_context * ctx) {
    if (!ctx->pymtp) {
        ctx->pymtp = std::make_shared<pymtp_extension>(*ctx);
        ctx->cparams.pymtp.extension = ctx->pymtp.get();
    }
    return *ctx->pymtp;
}

void pymtp_extension::set_tap(bool pre_norm) {
    if (settings().pre_norm != pre_norm) {
        settings().pre_norm = pre_norm;

        // The new graph has the same nodes but different outputs. With the buffers reserved for the old graph, the
        // final norm would overwrite its input, which is now an output.
        ctx.sched_need_reserve = true;
    }
}

// ── hooks ──

bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    return cparams.pymtp.extension ? cparams.pymtp.extension->apply(ubatch, mctx) : mctx.apply();
}

bool pymtp_same_graph(const llama_cparams & params_a, const llama_cparams & params_b) {
    const auto & a = params_a.pymtp;
    const auto & b = params_b.pymtp;
    return a.extension == b.extension    &&
        a.pre_norm     == b.pre_norm     &&
        a.pending_hidden    == b.pending_hidden    &&
        a.deferred        == b.deferred        &&
        a.take_hidden    == b.take_hidden    &&
        a.replay       == b.replay       &&
        a.has_replay      == b.has_replay      &&
        a.device_ops   == b.device_ops   &&
        a.reduced_output  == b.reduced_output  &&
        a.sample       == b.sample       &&
        a.n_candidates == b.n_candidates &&
        a.probs        == b.probs;
}

// ── pymtp_context.h ──

int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot) {
    return pymtp_extension::get(ctx).decode(batch, slot);
}

void pymtp_reserve(llama_context * ctx) {
    pymtp_extension::get(ctx).reserve();
}

void pymtp_set_tap(llama_context * ctx, bool pre_norm) {
    pymtp_extension::get(ctx).set_tap(pre_norm);
}

void pymtp_set_fused_sync(llama_context * ctx, llama_context * draft, bool deferred) {
    pymtp_extension::get(ctx).set_fused_sync(draft ? &pymtp_extension::get(draft) : nullptr, deferred);
}

void pymtp_set_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row) {
    pymtp_extension::get(ctx).set_pending_hidden(seq, pos, row);
}

void pymtp_get_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, float * row) {
    pymtp_extension::get(ctx).get_pending_hidden(seq, pos, row);
}

void pymtp_use_pending_hidden(llama_context * ctx, llama_context * target) {
    pymtp_extension::get(ctx).use_pending_hidden(target ? &pymtp_extension::get(target) : nullptr);
}

void pymtp_make_replay(llama_context * ctx, uint32_t max_rewind) {
    pymtp_extension::get(ctx).make_replay(max_rewind);
}

void pymtp_force_device_ops(llama_context * ctx, bool value) {
    pymtp_extension::get(ctx).force_device_ops(value);
}

bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep) {
    return pymtp_extension::get(ctx).rewind(seq, n_keep);
}

int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens,
        llama_pos n_head) {
    return pymtp_extension::get(ctx).copy_sequence(from, to, n_tokens, n_head);
}

int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n) {
    return pymtp_extension::get(ctx).copy_cells(from, to, first, n);
}

size_t pymtp_cell_bytes(llama_context * ctx) {
    return pymtp_extension::get(ctx).cell_bytes();
}

pymtp_kv_format pymtp_get_kv_format(llama_context * ctx) {
    return pymtp_extension::get(ctx).kv_format();
}

std::string pymtp_weight_buffers(llama_context * ctx) {
    std::map<std::string, int> counts;
    for (const auto & [name, t] : llama_get_model(ctx)->tensors_by_name) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
        // mapped files and host buffers count as "CPU", because both use the same kernels
        counts[ggml_backend_buft_is_host(buft) ? "CPU" : ggml_backend_buft_name(buft)]++;
    }
    std::string text;
    for (const auto & [name, n] : counts) {
        text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + name;
    }
    return text;
}

bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n) {
    return pymtp_extension::get(ctx).has_cells_in_order(seq, n);
}

bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, uint8_t * data,
        size_t stride) {
    return pymtp_extension::get(ctx).save_cells(seq, first, n, data, stride);
}

bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data,
        size_t stride) {
    return pymtp_extension::get(ctx).load_cells(seq, first, n, data, stride);
}

int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens) {
    return pymtp_extension::get(ctx).n_to_replay(seq, n_tokens);
}

int32_t pymtp_max_to_replay(llama_context * ctx) {
    return pymtp_extension::get(ctx).max_to_replay();
}

size_t pymtp_state_bytes(llama_context * ctx, int32_t n_replay) {
    return pymtp_extension::get(ctx).state_bytes(n_replay);
}

bool pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data) {
    return pymtp_extension::get(ctx).save_state(seq, n_tokens, data);
}

bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay,
        const uint8_t * data) {
    return pymtp_extension::get(ctx).load_state(seq, tokens, n, n_replay, data);
}

void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & sample) {
    pymtp_extension::get(ctx).set_sample(sample);
}

void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n) {
    pymtp_extension::get(ctx).get_sampled(tokens, values, n);
}

const ggml_tensor * pymtp_draft_output_layer(const llama_model & model) {
    return pymtp_reduced_output::full_layer(model);
}

void pymtp_make_reduced_output(llama_context * ctx, int32_t n_main, int32_t n_recent) {
    pymtp_extension::get(ctx).make_reduced_output(n_main, n_recent);
}

void pymtp_set_reduced_output(llama_context * ctx, const llama_token * tokens, bool only_recent, const void * data) {
    pymtp_extension::get(ctx).set_reduced_output(tokens, only_recent, data);
}

void pymtp_use_reduced_output(llama_context * ctx, bool value) {
    pymtp_extension & extension = pymtp_extension::get(ctx);
    extension.settings().reduced_output = value ? extension.reduced_output.get() : nullptr;
}

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx) {
    const pymtp_extension & extension = pymtp_extension::get(ctx);

    pymtp_output_bytes bytes = extension.bytes;
    bytes.samples = extension.sample.n_bytes;
    bytes.buffer  = extension.output_buffer_bytes();
    return bytes;
}

pymtp_memory_parts pymtp_get_memory(llama_context * ctx) {
    return pymtp_extension::get(ctx).memory();
}

pymtp_bytes_by_buffer pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n) {
    return pymtp_extension::get(ctx).planned_compute(n_seqs, n);
}
