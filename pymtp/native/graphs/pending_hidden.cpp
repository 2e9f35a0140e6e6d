// Keeps pending hidden states on the device: those that the head has yet to combine with the next tokens.
#include "pending_hidden.h"

#include "extension.h"

#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

// ── in graphs ──

ggml_tensor * pymtp_last_rows(ggml_context * ctx, ggml_tensor * rows, int64_t n) {
    const int64_t n_seqs = rows->ne[2];

    rows = ggml_view_3d(ctx, rows, rows->ne[0], n, n_seqs, rows->nb[1], rows->nb[2], (rows->ne[1] - n)*rows->nb[1]);
    if (n > 1 && n_seqs > 1) {
        rows = ggml_cont(ctx, rows);
    }
    return ggml_view_2d(ctx, rows, rows->ne[0], n*n_seqs, rows->nb[n > 1 ? 1 : 2], 0);
}

pymtp_input_sync::pymtp_input_sync(const llama_hparams & hparams, const llama_cparams & cparams) :
    llm_graph_input_attn_kv(hparams, cparams, cparams.pymtp.extension->head_cells()) {}

void pymtp_input_sync::set_input(const llama_ubatch * ubatch) {
    const ggml_tensor * rows   = cparams.pymtp.pending_hidden;
    const int64_t       n_keep = keep->ne[0]/ubatch->n_seqs;

    std::vector<int32_t> ids_take(ubatch->n_seqs);
    std::vector<int32_t> ids_keep(ubatch->n_seqs*n_keep);
    for (uint32_t s = 0; s < ubatch->n_seqs; ++s) {
        const uint32_t first = s*ubatch->n_seq_tokens;
        const uint32_t last  = first + ubatch->n_seq_tokens - 1;

        const llama_seq_id seq = ubatch->seq_id[first][0];

        ids_take[s] = pymtp_hidden_row_for(rows, seq, ubatch->pos[first]);
        for (int64_t i = 0; i < n_keep; ++i) {
            ids_keep[s*n_keep + i] = pymtp_hidden_row_for(rows, seq, ubatch->pos[last] + 2 - n_keep + i);
        }
    }
    ggml_backend_tensor_set(keep, ids_keep.data(), 0, ids_keep.size()*sizeof(int32_t));
    if (take) {
        llm_graph_input_attn_kv::set_input(ubatch);
        ggml_backend_tensor_set(take, ids_take.data(), 0, ids_take.size()*sizeof(int32_t));
    }
}

bool pymtp_input_sync::can_reuse(const llm_graph_params & params) {
    if (!take) {
        return true; // without `take`, only the indices in `keep` change, and they are an input
    }
    mctx = params.cparams.pymtp.extension->head_cells();

    return self_k_idxs->ne[0] == params.ubatch.n_tokens && take->ne[0] == params.ubatch.n_seqs;
}

void pymtp_input_pending::set_input(const llama_ubatch * ubatch) {
    // In a chain only the first token of each sequence is an input; without a chain every token is a "first" one.
    const int64_t n_steps = pos ? pos->ne[1] : 1;
    const int64_t n       = rows->ne[0];

    std::vector<int32_t> ids(n);
    std::vector<int32_t> first(n);
    for (int64_t i = 0; i < n; ++i) {
        ids[i]   = pymtp_hidden_row_for(pending, ubatch->seq_id[i*n_steps][0], ubatch->pos[i*n_steps]);
        first[i] = ubatch->token[i*n_steps];
    }
    ggml_backend_tensor_set(tokens, first.data(), 0, n*sizeof(int32_t));
    ggml_backend_tensor_set(rows,   ids.data(),   0, n*sizeof(int32_t));

    if (pos) {
        // Within a step, positions are in the same order as in llm_graph_input_pos for text. With M-RoPE, the fourth
        // position of a token is 0.
        std::vector<int32_t> data(pos->ne[0]*n_steps);
        for (int64_t i = 0; i < n_steps; ++i) {
            for (uint32_t d = 0; d < std::min(n_pos_per_embd, 3u); ++d) {
                for (int64_t s = 0; s < n; ++s) {
                    data[i*pos->ne[0] + d*n + s] = ubatch->pos[s*n_steps + i];
                }
            }
        }
        ggml_backend_tensor_set(pos, data.data(), 0, data.size()*sizeof(int32_t));
    }
}

bool pymtp_input_pending::can_reuse(const llm_graph_params & params) {
    if (!pos) {
        return tokens->ne[0] == params.ubatch.n_tokens;
    }
    return tokens->ne[0] == params.ubatch.n_seqs_unq && tokens->ne[0]*pos->ne[1] == params.ubatch.n_tokens;
}

// ── of a context ──

void pymtp_extension::make_pending_hidden() {
    const ggml_init_params params = { ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    ggml_context_ptr new_ctx(ggml_init(params));

    // enough rows for the tokens that can be rewound, and for the tokens that the head may lag behind
    const int64_t n_rows = std::max<int64_t>(64, replay ? 2*(1 + replay->max_rewind) : 0);

    const auto & model = ctx.model;
    ggml_tensor * rows = ggml_new_tensor_3d(new_ctx.get(), GGML_TYPE_F32, model.hparams.n_embd, n_rows,
            ctx.n_seq_max());
    ggml_set_name(rows, "pymtp_pending_hidden");

    // The rows are on the device of the head's block, so that only hidden states are copied between devices, and only
    // once.
    auto * buft = ggml_backend_dev_buffer_type(model.dev_layer(model.hparams.n_layer()));
    if (model.hparams.no_alloc) {
        rows->buffer = ggml_backend_buft_alloc_buffer(buft, 0); // a placeholder buffer without memory
        pending_buf.reset(rows->buffer);
    } else {
        pending_buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(new_ctx.get(), buft));
    }
    if (!pending_buf) {
        throw std::runtime_error("no memory for the last hidden states");
    }
    ggml_backend_buffer_clear(pending_buf.get(), 0);

    pending_ctx = std::move(new_ctx);
    ctx.sched_need_reserve = true;
}

void pymtp_extension::set_fused_sync(pymtp_extension * draft, bool deferred) {
    if (!draft) {
        settings().pending_hidden = nullptr;
        return;
    }
    if (!draft->kv || draft->states || &draft->ctx.model != &ctx.model ||
            draft->ctx.cparams.ctx_type != LLAMA_CONTEXT_TYPE_MTP) {
        throw std::runtime_error("the draft context must be of type MTP, of the same model, with a cache of its own");
    }
    draft_extension = draft;
    if (!pending_ctx) {
        make_pending_hidden();
    }
    settings().pending_hidden = ggml_get_first_tensor(pending_ctx.get());
    settings().deferred       = deferred;
}

void pymtp_extension::use_pending_hidden(const pymtp_extension * target) {
    if (target && target->draft_extension != this) {
        throw std::runtime_error("the target must have been synced with this draft context");
    }
    settings().take_hidden = target ? ggml_get_first_tensor(target->pending_ctx.get()) : nullptr;
}

void pymtp_extension::set_pending_hidden(llama_seq_id seq, llama_pos pos, const float * row) {
    ctx.synchronize();

    ggml_tensor * rows = ggml_get_first_tensor(pending_ctx.get());
    ggml_backend_tensor_set(rows, row, pymtp_hidden_row_for(rows, seq, pos)*rows->nb[1], rows->nb[1]);
}

void pymtp_extension::get_pending_hidden(llama_seq_id seq, llama_pos pos, float * row) {
    ctx.synchronize();

    const ggml_tensor * rows = ggml_get_first_tensor(pending_ctx.get());
    ggml_backend_tensor_get(rows, row, pymtp_hidden_row_for(rows, seq, pos)*rows->nb[1], rows->nb[1]);
    bytes.hidden += rows->nb[1];
}

// Finds cells in the draft context's cache for the tokens of the ubatch. For the first token of a sequence, also writes
// the zeros that it is combined with.
void pymtp_extension::find_head_cells(const llama_ubatch & ubatch) {
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        const uint32_t i = s*ubatch.n_seq_tokens;
        if (ubatch.n_seq_id[i] != 1) {
            throw std::runtime_error("tokens that belong to several sequences are not supported with drafts");
        }
        if (ubatch.pos[i] == 0) {
            const std::vector<float> zeros(ctx.model.hparams.n_embd, 0.0f);
            set_pending_hidden(ubatch.seq_id[i][0], 0, zeros.data());
        }
    }
    if (settings().deferred) {
        return;
    }

    auto cells = draft_extension->kv->find_slot(ubatch, /*cont =*/ false);
    if (cells.empty()) {
        throw std::runtime_error("no room in the draft context's cache for " + std::to_string(ubatch.n_tokens) +
                " tokens");
    }
    head_mctx = std::make_unique<llama_kv_cache_context>(draft_extension->kv,
            llama_kv_cache::slot_info_vec_t { std::move(cells) }, std::vector<llama_ubatch> { ubatch });
    head_mctx->apply();
}

const llama_kv_cache_context * pymtp_extension::head_cells() const {
    return static_cast<const llama_kv_cache_context *>(head_mctx.get());
}
