// Copies of sequences: what one holds goes to the same cells of another, from device memory to device memory.
#include "extension.h"
#include "kept_rows.h"
#include "replay.h"

#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"

#include <stdexcept>
#include <string>

namespace {

// Runs of cells that lie side by side.
struct cell_run {
    uint32_t first;
    uint32_t n;
};

// The cells of a sequence's tokens before n_tokens.
std::vector<cell_run> runs_of(const llama_kv_cells & cells, llama_seq_id seq, llama_pos n_tokens) {
    std::vector<cell_run> runs;
    for (const auto & [pos, cell] : cells.seq_pos_get(seq)) {
        if (pos >= n_tokens) {
            break;
        }
        if (!runs.empty() && cell == runs.back().first + runs.back().n) {
            runs.back().n++;
        } else {
            runs.push_back({ cell, 1 });
        }
    }
    return runs;
}

// Bytes of a tensor that go from one place in it to another: n of them, and as many more times as it has rows, each a stride
// after the one before.
struct piece {
    ggml_tensor * tensor;
    size_t        from;
    size_t        to;
    size_t        n;

    size_t n_rows = 1;
    size_t stride = 0;
};

ggml_tensor * view_of(ggml_context * ctx, ggml_tensor * t, size_t offset, size_t n) {
    ggml_tensor * view = ggml_view_1d(ctx, t, n/ggml_type_size(t->type)*ggml_blck_size(t->type), offset);
    ggml_backend_view_init(view);
    return view;
}

void copy(const piece & p) {
    if (p.n_rows > 1) {
        // no backend copies rows with gaps between them by itself
        std::vector<uint8_t> rows(p.n*p.n_rows);
        ggml_backend_tensor_get_2d(p.tensor, rows.data(), p.from, p.n, p.n_rows, p.stride, p.n);
        ggml_backend_tensor_set_2d(p.tensor, rows.data(), p.to,   p.n, p.n_rows, p.stride, p.n);
        return;
    }
    const ggml_init_params params = { 2*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    const ggml_context_ptr views(ggml_init(params));
    ggml_backend_tensor_copy(view_of(views.get(), p.tensor, p.from, p.n), view_of(views.get(), p.tensor, p.to, p.n));
}

// Whole rows of a tensor.
piece rows_piece(ggml_tensor * t, size_t from, size_t to, size_t n) {
    return { t, from*t->nb[1], to*t->nb[1], n*t->nb[1] };
}

// K or V of a run of cells, in the streams of two sequences.
piece cells_piece(ggml_tensor * t, uint32_t from, uint32_t to, const cell_run & run) {
    return rows_piece(t, from*t->ne[1] + run.first, to*t->ne[1] + run.first, run.n);
}

// The same of a V that is transposed: a row for each of its elements, and in it a place for each cell.
piece transposed_piece(ggml_tensor * t, uint32_t from, uint32_t to, const cell_run & run) {
    const size_t size = ggml_type_size(t->type);
    return { t, from*t->nb[2] + run.first*size, to*t->nb[2] + run.first*size, run.n*size, (size_t) t->ne[0], t->ne[1]*size };
}

// What attention sees of a layer's V: whoever looks at it tells by the strides whether it is transposed.
const ggml_tensor * v_of(const llama_kv_cache & kv, ggml_context * ctx, uint32_t il) {
    llama_kv_cache::slot_info first = { /*.s0 =*/ 0, /*.s1 =*/ 0, {}, {} };
    return kv.get_v(ctx, il, /*n_kv =*/ 1, first);
}

// All that a sequence holds in tensors: of its first n_tokens, and of the hidden states those that the tokens at n_head and
// after it go with.
std::vector<piece> pieces_of(
        const pymtp_extension & ext, llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head) {
    std::vector<piece> pieces;

    const std::vector<uint32_t> layers = ext.kv->get_layer_ids();
    const std::vector<cell_run> runs   = runs_of(ext.kv->get_cells(from), from, n_tokens);

    const uint32_t s_from = ext.kv->get_stream(from);
    const uint32_t s_to   = ext.kv->get_stream(to);

    const ggml_init_params params = { layers.size()*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    const ggml_context_ptr views(ggml_init(params));
    for (const uint32_t il : layers) {
        const ggml_tensor * v = v_of(*ext.kv, views.get(), il);
        for (const cell_run & run : runs) {
            pieces.push_back(cells_piece(ext.kv->get_k_storage(il), s_from, s_to, run));
            pieces.push_back((v->nb[1] > v->nb[2] ? transposed_piece : cells_piece)(v->view_src, s_from, s_to, run));
        }
    }
    if (ext.replay) {
        const auto theirs = ext.replay->parts(from);
        const auto parts  = ext.replay->parts(to);
        for (size_t i = 0; i < parts.size(); ++i) {
            pieces.push_back({ parts[i].tensor, theirs[i].offset, parts[i].offset, parts[i].size });
        }
    }
    if (ext.rows_ctx) {
        ggml_tensor * rows = ggml_get_first_tensor(ext.rows_ctx.get());
        for (llama_pos pos = n_head; pos <= n_tokens; ++pos) {
            pieces.push_back(rows_piece(rows, pymtp_row_before(rows, from, pos), pymtp_row_before(rows, to, pos), 1));
        }
    }
    return pieces;
}

} // namespace

// Bytes copied, -1 where it was cancelled. What the sequences hold is as it was, and so is all that says what they hold, until
// everything was copied.
int64_t pymtp_extension::copy_sequence(llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head) {
    if (kv->get_stream(from) == kv->get_stream(to) || kv->seq_pos_max(to) >= 0 || (states && states->seq_pos_max(to) >= 0)) {
        throw std::runtime_error("sequence " + std::to_string(to) + " is no empty one with cells of its own");
    }
    if (n_tokens == 0) {
        return 0;
    }
    ctx.synchronize();
    if (states && states->cells[to].tail != to && (states->cells[to].tail >= 0 || !states->cells[to].is_empty())) {
        throw std::runtime_error("the cell for the states of sequence " + std::to_string(to) + " is another's");
    }
    if (states) {
        place_state(to); // whose place is asked for below
    }
    int64_t n_bytes = 0;
    for (const piece & p : pieces_of(*this, from, to, n_tokens, n_head)) {
        if (ctx.abort_callback && ctx.abort_callback(ctx.abort_callback_data)) {
            return -1;
        }
        copy(p);
        n_bytes += p.n*p.n_rows;
    }

    // llama.cpp has no way to say what a cell holds but a batch
    const llama_kv_cells & theirs = kv->get_cells(from);
    llama_kv_cells & cells = const_cast<llama_kv_cells &>(kv->get_cells(to));
    for (const cell_run & run : runs_of(theirs, from, n_tokens)) {
        for (uint32_t i = run.first; i < run.first + run.n; ++i) {
            cells.pos_set(i, theirs.pos_get(i));
            cells.ext_set(i, theirs.ext_get(i));
            cells.seq_add(i, to);
        }
    }
    if (states) {
        states->cells[to].pos = states->cells[states->cells[from].tail].pos;
        states->cells[to].src = to;
    }
    if (replay) {
        replay->copy(from, to);
    }
    return n_bytes;
}
