// The extension of a context, the settings it keeps in llama_cparams, and what stands behind pymtp_context.h and the hooks.
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

pymtp_extension & pymtp_extension::of(llama_context * ctx) {
    if (!ctx->pymtp) {
        ctx->pymtp = std::make_shared<pymtp_extension>(*ctx);
        ctx->cparams.pymtp.extension = ctx->pymtp.get();
    }
    return *ctx->pymtp;
}

void pymtp_extension::set_tap(bool pre_norm) {
    if (settings().pre_norm != pre_norm) {
        settings().pre_norm = pre_norm;

        // the graph keeps its shape but not its outputs: with the old reservation the final norm would overwrite its input
        ctx.sched_need_reserve = true;
    }
}

// ── hooks ──

bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    return cparams.pymtp.extension ? cparams.pymtp.extension->apply(ubatch, mctx) : mctx.apply();
}

bool pymtp_same_graph(const llama_cparams & one, const llama_cparams & other) {
    const auto & a = one.pymtp;
    const auto & b = other.pymtp;
    return a.extension == b.extension    &&
        a.pre_norm     == b.pre_norm     &&
        a.sync_rows    == b.sync_rows    &&
        a.defer        == b.defer        &&
        a.take_rows    == b.take_rows    &&
        a.replay       == b.replay       &&
        a.replays      == b.replays      &&
        a.as_devices   == b.as_devices   &&
        a.output_rows  == b.output_rows  &&
        a.sample       == b.sample       &&
        a.n_candidates == b.n_candidates &&
        a.probs        == b.probs;
}

// ── pymtp_context.h ──

int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot) {
    return pymtp_extension::of(ctx).decode(batch, slot);
}

void pymtp_reserve(llama_context * ctx) {
    pymtp_extension::of(ctx).reserve();
}

void pymtp_set_tap(llama_context * ctx, bool pre_norm) {
    pymtp_extension::of(ctx).set_tap(pre_norm);
}

void pymtp_set_sync(llama_context * ctx, llama_context * draft, bool defer) {
    pymtp_extension::of(ctx).set_sync(draft ? &pymtp_extension::of(draft) : nullptr, defer);
}

void pymtp_set_kept_row(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row) {
    pymtp_extension::of(ctx).set_kept_row(seq, pos, row);
}

void pymtp_get_kept_row(llama_context * ctx, llama_seq_id seq, llama_pos pos, float * row) {
    pymtp_extension::of(ctx).get_kept_row(seq, pos, row);
}

void pymtp_take_kept_rows(llama_context * ctx, llama_context * target) {
    pymtp_extension::of(ctx).take_kept_rows(target ? &pymtp_extension::of(target) : nullptr);
}

void pymtp_make_replay(llama_context * ctx, uint32_t n_back) {
    pymtp_extension::of(ctx).make_replay(n_back);
}

void pymtp_compute_as_devices(llama_context * ctx, bool value) {
    pymtp_extension::of(ctx).compute_as_devices(value);
}

bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep) {
    return pymtp_extension::of(ctx).rewind(seq, n_keep);
}

int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head) {
    return pymtp_extension::of(ctx).copy_sequence(from, to, n_tokens, n_head);
}

int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n) {
    return pymtp_extension::of(ctx).copy_cells(from, to, first, n);
}

size_t pymtp_cell_bytes(llama_context * ctx) {
    return pymtp_extension::of(ctx).cell_bytes();
}

pymtp_cell_kind pymtp_get_cell_kind(llama_context * ctx) {
    return pymtp_extension::of(ctx).cell_kind();
}

std::string pymtp_weight_buffers(llama_context * ctx) {
    std::map<std::string, int> counts;
    for (const auto & [name, t] : llama_get_model(ctx)->tensors_by_name) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
        counts[ggml_backend_buft_is_host(buft) ? "CPU" : ggml_backend_buft_name(buft)]++; // of a mapped file or not
    }
    std::string text;
    for (const auto & [name, n] : counts) {
        text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + name;
    }
    return text;
}

bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n) {
    return pymtp_extension::of(ctx).has_cells_in_order(seq, n);
}

bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, uint8_t * data, size_t stride) {
    return pymtp_extension::of(ctx).save_cells(seq, first, n, data, stride);
}

bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data, size_t stride) {
    return pymtp_extension::of(ctx).load_cells(seq, first, n, data, stride);
}

int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens) {
    return pymtp_extension::of(ctx).n_to_replay(seq, n_tokens);
}

int32_t pymtp_most_to_replay(llama_context * ctx) {
    return pymtp_extension::of(ctx).most_to_replay();
}

size_t pymtp_state_bytes(llama_context * ctx, int32_t n_replay) {
    return pymtp_extension::of(ctx).state_bytes(n_replay);
}

bool pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data) {
    return pymtp_extension::of(ctx).save_state(seq, n_tokens, data);
}

bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay, const uint8_t * data) {
    return pymtp_extension::of(ctx).load_state(seq, tokens, n, n_replay, data);
}

void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & sample) {
    pymtp_extension::of(ctx).set_sample(sample);
}

void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n) {
    pymtp_extension::of(ctx).get_sampled(tokens, values, n);
}

const ggml_tensor * pymtp_draft_output(const llama_model & model) {
    return pymtp_output_rows::layer_of(model);
}

void pymtp_make_draft_rows(llama_context * ctx, int32_t n_main, int32_t n_annex) {
    pymtp_extension::of(ctx).make_draft_rows(n_main, n_annex);
}

void pymtp_set_draft_rows(llama_context * ctx, const llama_token * tokens, bool only_annex, const void * data) {
    pymtp_extension::of(ctx).set_draft_rows(tokens, only_annex, data);
}

void pymtp_use_draft_rows(llama_context * ctx, bool value) {
    pymtp_extension & extension = pymtp_extension::of(ctx);
    extension.settings().output_rows = value ? extension.output_rows.get() : nullptr;
}

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx) {
    const pymtp_extension & extension = pymtp_extension::of(ctx);

    pymtp_output_bytes bytes = extension.bytes;
    bytes.samples = extension.sample.n_bytes;
    bytes.buffer  = extension.output_buffer_bytes();
    return bytes;
}

pymtp_memory_parts pymtp_get_memory(llama_context * ctx) {
    return pymtp_extension::of(ctx).memory();
}

pymtp_bytes pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n) {
    return pymtp_extension::of(ctx).planned_compute(n_seqs, n);
}
