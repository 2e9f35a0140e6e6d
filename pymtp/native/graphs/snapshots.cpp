// Recurrent states and the snapshots that drafts are taken back with. Of a sequence in cell c, snapshot k is in row
// k*size + c of each layer's tensor, and row c has the state itself.
#include "extension.h"

#include "llama-memory-recurrent.h"

#include <algorithm>

uint32_t pymtp_extension::snapshots_of(uint32_t n_seq_tokens) const {
    return snapshots ? std::min(n_rs_seq, n_seq_tokens - 1) : 0;
}

// llama.cpp takes the next free cell, and swaps cells within a decode until those of a ubatch lie side by side in rising
// order. A sequence that is not in the ubatch can be moved that way: its snapshots would stay behind, and a decode that is
// cancelled could leave it half moved. Ubatches are of consecutive sequences, so that cells by number are never swapped.
void pymtp_extension::place_state(llama_seq_id seq) {
    auto & cell = states->cells[seq];
    if (cell.tail >= 0 || !cell.is_empty()) { // tail: the cell of the sequence of this number
        return;
    }
    cell.tail = seq;
    cell.seq_id.insert(seq);
    states->used++;
}

bool pymtp_extension::rewind(llama_seq_id seq, llama_pos n_keep) {
    auto *          memory = ctx.memory.get();
    const llama_pos n_back = memory->seq_pos_max(seq) + 1 - n_keep;

    if (states && n_back > 0) {
        reach & last = reaches[seq];
        if (memory->seq_pos_max(seq) != last.pos || n_back > last.n) {
            return false;
        }
        last = {};
    }
    return memory->seq_rm(seq, n_keep, -1);
}

ggml_backend_buffer_t pymtp_alloc_states(ggml_context * ctx, ggml_backend_buffer_type_t buft, uint32_t n_copies, bool no_alloc) {
    const auto each = [&](auto && call) {
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
            call(t);
        }
    };
    if (no_alloc) {
        ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, 0);
        each([&](ggml_tensor * t) { t->buffer = buffer; }); // the scheduler is not to allocate it
        return buffer;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    if (buffer && ggml_backend_buffer_is_host(buffer)) {
        // not the snapshots: none is read before it was written, and pages that nobody touched take no memory
        each([&](ggml_tensor * t) { ggml_backend_tensor_memset(t, 0, 0, ggml_nbytes(t)/n_copies); });
    } else if (buffer) {
        ggml_backend_buffer_clear(buffer, 0);
    }
    return buffer;
}
