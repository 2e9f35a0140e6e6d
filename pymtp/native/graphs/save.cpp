// Saves sequences to host memory and loads them, in a layout that depends neither on the sequence's number nor on the
// cells that it occupies.
#include "kv_cells.h"
#include "extension.h"
#include "replay.h"

#include "llama-memory-recurrent.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

constexpr uint32_t cells_per_step = 256; // number of cells to copy between two checks whether the call is aborted

// Writes the n_rows rows of `from` as columns to `to`: `to` gets n_columns rows of n_rows elements. from_stride: bytes
// between rows of `from`. to_stride: bytes between rows of `to`, which are the columns of `from`
template <typename T>
void transpose(const uint8_t * from, size_t n_rows, size_t n_columns, size_t from_stride, uint8_t * to,
        size_t to_stride) {
    for (size_t column = 0; column < n_columns; ++column) {
        for (size_t row = 0; row < n_rows; ++row) {
            std::memcpy(to + column*to_stride + row*sizeof(T), from + row*from_stride + column*sizeof(T), sizeof(T));
        }
    }
}

void transpose_elements(
        size_t size, const uint8_t * from, size_t n_rows, size_t n_columns, size_t from_stride, uint8_t * to,
        size_t to_stride) {
    (size == 2 ? transpose<uint16_t> : transpose<uint32_t>)(from, n_rows, n_columns, from_stride, to, to_stride);
}

// Copies the cells of a run to host memory.
// data: receives the bytes of the first cell; those of each further cell start `stride` bytes later
void get_cells(const pymtp_cell_tensor & t, uint32_t stream, const pymtp_cell_run & run, uint8_t * data,
        size_t stride) {
    const size_t offset = t.offset(stream, run.first);
    if (!t.transposed) {
        ggml_backend_tensor_get_2d(t.tensor, data, offset, t.n_bytes(), run.n, t.n_bytes(), stride);
        return;
    }
    const size_t n_elements = t.tensor->ne[0];
    const size_t n_row      = run.n*t.element_size();

    std::vector<uint8_t> rows(n_elements*n_row);
    ggml_backend_tensor_get_2d(t.tensor, rows.data(), offset, n_row, n_elements, t.element_stride(), n_row);
    transpose_elements(t.element_size(), rows.data(), n_elements, run.n, n_row, data, stride);
}

void set_cells(const pymtp_cell_tensor & t, uint32_t stream, const pymtp_cell_run & run, const uint8_t * data,
        size_t stride) {
    const size_t offset = t.offset(stream, run.first);
    if (!t.transposed) {
        ggml_backend_tensor_set_2d(t.tensor, data, offset, t.n_bytes(), run.n, t.n_bytes(), stride);
        return;
    }
    const size_t n_elements = t.tensor->ne[0];
    const size_t n_row      = run.n*t.element_size();

    std::vector<uint8_t> rows(n_elements*n_row);
    transpose_elements(t.element_size(), data, run.n, n_elements, stride, rows.data(), n_row);
    ggml_backend_tensor_set_2d(t.tensor, rows.data(), offset, n_row, n_elements, t.element_stride(), n_row);
}

} // namespace

size_t pymtp_cell_bytes(llama_context * ctx) {
    size_t sum = 0;
    for (const pymtp_cell_tensor & t : pymtp_cell_tensors(*pymtp_extension::get(ctx).kv)) {
        sum += t.n_bytes();
    }
    return sum;
}

pymtp_kv_format pymtp_get_kv_format(llama_context * ctx) {
    const std::vector<pymtp_cell_tensor> tensors = pymtp_cell_tensors(*pymtp_extension::get(ctx).kv);
    return { tensors.at(0).tensor->type, tensors.at(1).tensor->type, ctx->get_cparams().flash_attn };
}

bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, uint8_t * data,
        size_t stride) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    ctx->synchronize();
    const std::vector<pymtp_cell_run> runs = pymtp_find_runs(ext.kv->get_cells(seq), seq, first, first + n);
    for (const pymtp_cell_tensor & t : pymtp_cell_tensors(*ext.kv)) {
        uint8_t * to = data;
        for (const pymtp_cell_run & run : runs) {
            for (uint32_t i = 0; i < run.n; i += cells_per_step) {
                if (ext.abort_requested()) {
                    return false;
                }
                const pymtp_cell_run chunk = { run.first + i, std::min(cells_per_step, run.n - i) };
                get_cells(t, ext.kv->get_stream(seq), chunk, to, stride);
                to += chunk.n*stride;
            }
        }
        data += t.n_bytes();
    }
    return true;
}

bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data,
        size_t stride) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    ctx->synchronize();
    for (const pymtp_cell_tensor & t : pymtp_cell_tensors(*ext.kv)) {
        for (uint32_t i = 0; i < (uint32_t) n; i += cells_per_step) {
            if (ext.abort_requested()) {
                return false;
            }
            const pymtp_cell_run chunk = { first + i, std::min(cells_per_step, n - i) };
            set_cells(t, ext.kv->get_stream(seq), chunk, data + i*stride, stride);
        }
        data += t.n_bytes();
    }
    return true;
}

bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n) {
    const llama_kv_cells & cells = pymtp_extension::get(ctx).kv->get_cells(seq);
    const std::vector<pymtp_cell_run> runs = pymtp_find_runs(cells, seq, 0, n);
    return runs.size() == 1 && runs[0].first == 0 && runs[0].n == (uint32_t) n;
}

int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens) {
    const auto & replay = pymtp_extension::get(ctx).replay;
    return replay ? replay->n_to_replay(seq, n_tokens) : 0;
}

int32_t pymtp_max_to_replay(llama_context * ctx) {
    const auto & replay = pymtp_extension::get(ctx).replay;
    return replay && replay->max_rewind > 0 ? replay->max_pending() : 0;
}

size_t pymtp_state_bytes(llama_context * ctx, int32_t n_replay) {
    size_t sum = 0;
    if (const auto & replay = pymtp_extension::get(ctx).replay) {
        for (const pymtp_replay::part & p : replay->resume_parts(0, n_replay, n_replay)) {
            sum += p.size;
        }
    }
    return sum;
}

bool pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data) {
    const pymtp_extension & ext = pymtp_extension::get(ctx);
    ctx->synchronize();
    if (!ext.replay) {
        return true;
    }
    for (const pymtp_replay::part & p :
            ext.replay->resume_parts(seq, n_tokens, ext.replay->n_to_replay(seq, n_tokens))) {
        if (ext.abort_requested()) {
            return false;
        }
        ggml_backend_tensor_get(p.tensor, data, p.offset, p.size);
        data += p.size;
    }
    return true;
}

bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay,
        const uint8_t * data) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    ctx->synchronize();
    pymtp_require_empty(ext, seq);
    if (ext.replay) {
        pymtp_assign_state_cell(*ext.states, seq);
        for (const pymtp_replay::part & p : ext.replay->resume_parts(seq, n, n_replay)) {
            if (ext.abort_requested()) {
                return false;
            }
            ggml_backend_tensor_set(p.tensor, data, p.offset, p.size);
            data += p.size;
        }
        ext.states->cells[seq].pos = n - 1;
        ext.states->cells[seq].src = seq;
        ext.replay->set_position(seq, n, n_replay);
    }

    // A const_cast, because llama.cpp offers no way to set which token is in a cell, except by decoding it.
    llama_kv_cells & cells = const_cast<llama_kv_cells &>(ext.kv->get_cells(seq));
    for (int32_t i = 0; i < n; ++i) {
        cells.pos_set(i, i);
        // the same values as apply_ubatch sets for text
        cells.ext_set(i, { /*.x =*/ i, /*.y =*/ i, /*.tok =*/ tokens[i] });
        cells.seq_add(i, seq);
    }
    return true;
}

void pymtp_require_empty(const pymtp_extension & ext, llama_seq_id seq) {
    const auto * states = ext.states;
    if (ext.kv->seq_pos_max(seq) >= 0 || (states && states->seq_pos_max(seq) >= 0)) {
        throw std::runtime_error("sequence " + std::to_string(seq) + " is not empty");
    }
    if (states && states->cells[seq].tail != seq && (states->cells[seq].tail >= 0 || !states->cells[seq].is_empty())) {
        throw std::runtime_error("the cell for the states of sequence " + std::to_string(seq) + " is another's");
    }
}
