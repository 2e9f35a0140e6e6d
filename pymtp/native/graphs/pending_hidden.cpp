// Keeps pending hidden states on the device: those that the head has yet to combine with the next tokens.
#include "pending_hidden.h"

#include "extension.h"
#include "rope_input.h"

#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

// ── in graphs ──

// Returns the cells in the draft context's cache for the current ubatch of a target context.
static const llama_kv_cache_context * head_cells(const llama_cparams & cparams) {
    return static_cast<const llama_kv_cache_context *>(cparams.pymtp.extension->head_mctx.get());
}

ggml_tensor * pymtp_last_rows(ggml_context * ctx, ggml_tensor * rows, int64_t n) {
    const int64_t n_seqs = rows->ne[2];

    rows = ggml_view_3d(ctx, rows, rows->ne[0], n, n_seqs, rows->nb[1], rows->nb[2], (rows->ne[1] - n)*rows->nb[1]);
    if (n > 1 && n_seqs > 1) {
        rows = ggml_cont(ctx, rows);
    }
    return ggml_view_2d(ctx, rows, rows->ne[0], n*n_seqs, rows->nb[n > 1 ? 1 : 2], 0);
}

pymtp_input_sync::pymtp_input_sync(const llama_hparams & hparams, const llama_cparams & cparams) :
    llm_graph_input_attn_kv(hparams, cparams, head_cells(cparams)) {}

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
    mctx = head_cells(params.cparams);

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
            if (images_of && n_pos_per_embd == 4) {
                pymtp_write_positions(*ubatch, images_of, i, n_steps, n, data.data() + i*pos->ne[0]);
                continue;
            }
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

pymtp_pending_hidden::pymtp_pending_hidden(const llama_model & model, int64_t n_rows, int64_t n_seq_max) :
    tensors(1, model.hparams.no_alloc),
    rows(tensors.add(GGML_TYPE_F32, "pymtp_pending_hidden", model.hparams.n_embd, n_rows, n_seq_max)) {
    // The rows are on the device of the head's block, so that only hidden states are copied between devices, and only
    // once.
    ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(model.dev_layer(model.hparams.n_layer()));
    ggml_backend_buffer_clear(tensors.allocate(buft, "the last hidden states"), 0);
}

void pymtp_pending_hidden::set(llama_seq_id seq, llama_pos pos, const float * row) {
    ggml_backend_tensor_set(rows, row, pymtp_hidden_row_for(rows, seq, pos)*rows->nb[1], rows->nb[1]);
}

void pymtp_pending_hidden::get(llama_seq_id seq, llama_pos pos, float * row) const {
    ggml_backend_tensor_get(rows, row, pymtp_hidden_row_for(rows, seq, pos)*rows->nb[1], rows->nb[1]);
}

void pymtp_set_fused_sync(llama_context * ctx, llama_context * draft, bool deferred) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (!draft) {
        ext.settings().pending_hidden = nullptr;
        return;
    }
    ext.draft = &pymtp_extension::get(draft);
    if (ext.draft->states || &draft->get_model() != &ctx->get_model() ||
            draft->get_cparams().ctx_type != LLAMA_CONTEXT_TYPE_MTP) {
        throw std::runtime_error("the draft context must be of type MTP, of the same model, with a cache of its own");
    }
    if (!ext.pending_hidden) {
        // enough rows for the tokens that can be rewound, and for the tokens that the head may lag behind
        const int64_t n_rows = std::max(64, ext.replay ? 2*(1 + ext.replay->max_rewind) : 0);

        ext.pending_hidden = std::make_unique<pymtp_pending_hidden>(ctx->get_model(), n_rows, ctx->n_seq_max());
        ext.need_reserve();
    }
    ext.settings().pending_hidden = ext.pending_hidden->tensor();
    ext.settings().deferred       = deferred;
}

void pymtp_use_pending_hidden(llama_context * ctx, llama_context * target) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (target && pymtp_extension::get(target).draft != &ext) {
        throw std::runtime_error("the target must have been synced with this draft context");
    }
    ext.settings().take_hidden = target ? pymtp_extension::get(target).pending_hidden->tensor() : nullptr;
}

void pymtp_set_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row) {
    ctx->synchronize();
    pymtp_extension::get(ctx).pending_hidden->set(seq, pos, row);
}

void pymtp_get_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, float * row) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    ctx->synchronize();
    ext.pending_hidden->get(seq, pos, row);
    ext.bytes.hidden += ext.pending_hidden->tensor()->nb[1];
}

// For the first token of a sequence, also writes the zeros that it is combined with.
void pymtp_extension::find_head_cells(const llama_ubatch & ubatch) {
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        const uint32_t i = s*ubatch.n_seq_tokens;
        if (ubatch.n_seq_id[i] != 1) {
            throw std::runtime_error("tokens that belong to several sequences are not supported with drafts");
        }
        if (ubatch.pos[i] == 0) {
            const std::vector<float> zeros(ctx.model.hparams.n_embd, 0.0f);
            pymtp_set_pending_hidden(&ctx, ubatch.seq_id[i][0], 0, zeros.data());
        }
    }
    if (settings().deferred) {
        return;
    }

    auto cells = draft->kv->find_slot(ubatch, /*cont =*/ false);
    if (cells.empty()) {
        throw std::runtime_error("no room in the draft context's cache for " + std::to_string(ubatch.n_tokens) +
                " tokens");
    }
    head_mctx = std::make_unique<llama_kv_cache_context>(draft->kv,
            llama_kv_cache::slot_info_vec_t { std::move(cells) }, std::vector<llama_ubatch> { ubatch });
    head_mctx->apply();
}
