// Copies a sequence to the cells with the same numbers of another sequence, within device memory.
#include "kv_cells.h"
#include "extension.h"
#include "pending_hidden.h"
#include "replay.h"

#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"

#include <stdexcept>
#include <string>

namespace {

// A part of a tensor to copy to another place in the same tensor: n_rows rows of n bytes, which start `stride` bytes
// apart.
struct piece {
    ggml_tensor * tensor;
    size_t        from;
    size_t        to;
    size_t        n;

    size_t n_rows = 1;
    size_t stride = 0;
};

ggml_tensor * make_view(ggml_context * ctx, ggml_tensor * t, size_t offset, size_t n) {
    ggml_tensor * view = ggml_view_1d(ctx, t, n/ggml_type_size(t->type)*ggml_blck_size(t->type), offset);
    ggml_backend_view_init(view);
    return view;
}

void copy(const piece & p) {
    if (p.n_rows > 1) {
        // No backend can copy strided rows within its memory, so they are copied through the host.
        std::vector<uint8_t> rows(p.n*p.n_rows);
        ggml_backend_tensor_get_2d(p.tensor, rows.data(), p.from, p.n, p.n_rows, p.stride, p.n);
        ggml_backend_tensor_set_2d(p.tensor, rows.data(), p.to,   p.n, p.n_rows, p.stride, p.n);
        return;
    }
    const ggml_init_params params = { 2*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    const ggml_context_ptr views(ggml_init(params));
    ggml_backend_tensor_copy(make_view(views.get(), p.tensor, p.from, p.n),
            make_view(views.get(), p.tensor, p.to, p.n));
}

// Returns the piece that copies n whole rows of a tensor, from row `from` to row `to`.
piece rows_piece(ggml_tensor * t, size_t from, size_t to, size_t n) {
    return { t, from*t->nb[1], to*t->nb[1], n*t->nb[1] };
}

// Returns the piece that copies K or V of a run of cells in the stream `from` to the cells from `first` on in the
// stream `to`.
piece cells_piece(const pymtp_cell_tensor & t, uint32_t from, uint32_t to, const pymtp_cell_run & run, uint32_t first) {
    if (!t.transposed) {
        return { t.tensor, t.offset(from, run.first), t.offset(to, first), run.n*t.n_bytes() };
    }
    return { t.tensor, t.offset(from, run.first), t.offset(to, first), run.n*t.element_size(),
             (size_t) t.tensor->ne[0], t.element_stride() };
}

// Lists everything to copy for a sequence: K and V of its first n_tokens tokens, the recurrent states, and the pending
// hidden states that the tokens from n_head on are combined with.
std::vector<piece> list_pieces(
        const pymtp_extension & ext, llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head) {
    std::vector<piece> pieces;

    const std::vector<pymtp_cell_run> runs = pymtp_find_runs(ext.kv->get_cells(from), from, 0, n_tokens);

    const uint32_t s_from = ext.kv->get_stream(from);
    const uint32_t s_to   = ext.kv->get_stream(to);
    for (const pymtp_cell_tensor & t : pymtp_cell_tensors(*ext.kv)) {
        for (const pymtp_cell_run & run : runs) {
            pieces.push_back(cells_piece(t, s_from, s_to, run, run.first));
        }
    }
    if (ext.replay) {
        const auto theirs = ext.replay->all_parts(from);
        const auto parts  = ext.replay->all_parts(to);
        for (size_t i = 0; i < parts.size(); ++i) {
            pieces.push_back({ parts[i].tensor, theirs[i].offset, parts[i].offset, parts[i].size });
        }
    }
    if (ext.pending_hidden) {
        ggml_tensor * rows = ext.pending_hidden->tensor();
        for (llama_pos pos = n_head; pos <= n_tokens; ++pos) {
            pieces.push_back(rows_piece(rows, pymtp_hidden_row_for(rows, from, pos),
                    pymtp_hidden_row_for(rows, to, pos), 1));
        }
    }
    return pieces;
}

} // namespace

// The metadata of both sequences change only after everything is copied, so that a failure leaves them consistent.
int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens,
        llama_pos n_head) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (ext.kv->get_stream(from) == ext.kv->get_stream(to)) {
        throw std::runtime_error("sequence " + std::to_string(to) + " has no cells of its own");
    }
    pymtp_require_empty(ext, to);
    if (n_tokens == 0) {
        return 0;
    }
    ctx->synchronize();
    if (ext.states) {
        pymtp_assign_state_cell(*ext.states, to); // must be before list_pieces(), which needs the cell
    }
    int64_t n_bytes = 0;
    for (const piece & p : list_pieces(ext, from, to, n_tokens, n_head)) {
        if (ext.abort_requested()) {
            return -1;
        }
        copy(p);
        n_bytes += p.n*p.n_rows;
    }

    // A const_cast, because llama.cpp offers no way to set which token is in a cell, except by decoding it.
    const llama_kv_cells & theirs = ext.kv->get_cells(from);
    llama_kv_cells & cells = const_cast<llama_kv_cells &>(ext.kv->get_cells(to));
    for (const pymtp_cell_run & run : pymtp_find_runs(theirs, from, 0, n_tokens)) {
        for (uint32_t i = run.first; i < run.first + run.n; ++i) {
            cells.pos_set(i, theirs.pos_get(i));
            cells.ext_set(i, theirs.ext_get(i));
            cells.seq_add(i, to);
        }
    }
    if (ext.states) {
        auto & state_cells = ext.states->cells;
        state_cells[to].pos = state_cells[state_cells[from].tail].pos;
        state_cells[to].src = to;
    }
    if (ext.replay) {
        ext.replay->copy(from, to);
    }
    return n_bytes;
}

int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    const llama_kv_cache &  kv  = *ext.kv;
    ctx->synchronize();
    int64_t n_bytes = 0;

    const std::vector<pymtp_cell_run> runs = pymtp_find_runs(kv.get_cells(from), from, first, first + n);
    for (const pymtp_cell_tensor & t : pymtp_cell_tensors(kv)) {
        uint32_t cell = first;
        for (const pymtp_cell_run & run : runs) {
            if (ext.abort_requested()) {
                return -1;
            }
            copy(cells_piece(t, kv.get_stream(from), kv.get_stream(to), run, cell));
            n_bytes += run.n*t.n_bytes();
            cell    += run.n;
        }
    }
    return n_bytes;
}
