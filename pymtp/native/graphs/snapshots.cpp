// Recurrent states and the snapshots that drafts are taken back with. Of a sequence in cell c, snapshot k is in row
// k*size + c of each layer's tensor, and row c has the state itself.
#include "extension.h"

#include "llama-memory-recurrent.h"

#include <algorithm>

uint32_t pymtp_extension::snapshots_of(uint32_t n_seq_tokens) const {
    return snapshots ? std::min(n_rs_seq, n_seq_tokens - 1) : 0;
}

std::vector<int32_t> pymtp_extension::cells_of_sequences() const {
    std::vector<int32_t> cells(reaches.size());
    for (size_t seq = 0; seq < cells.size(); ++seq) {
        cells[seq] = states->cells[seq].tail;
    }
    return cells;
}

// llama.cpp puts the sequences of a ubatch side by side, for which it moves those that are in the way. The graph moves their
// states; their snapshots follow here. Where a snapshot is waiting to be read, it becomes the state that is moved.
void pymtp_extension::move_snapshots(const llama_ubatch & ubatch, const std::vector<int32_t> & cells_before) {
    const uint32_t size = states->size;

    std::vector<std::pair<uint32_t, uint32_t>> rows;
    for (size_t seq = 0; seq < cells_before.size(); ++seq) {
        const int32_t from = cells_before[seq];
        const int32_t to   = states->cells[seq].tail;
        if (from < 0 || from == to) {
            continue;
        }
        if (const uint32_t snapshot = states->rs_idx[seq]) {
            rows.emplace_back(snapshot*size + from, from);
            states->rs_idx[seq] = 0;
        } else if (ubatch.seq_idx[seq] < 0) {
            for (llama_pos k = 1; k <= reaches[seq].n; ++k) {
                rows.emplace_back(k*size + from, k*size + to);
            }
        }
    }
    if (rows.empty()) {
        return;
    }

    ctx.synchronize();
    for (const auto * layers : { &states->r_l, &states->s_l, &states->p_l }) {
        for (ggml_tensor * t : *layers) {
            if (!t) {
                continue;
            }
            // all are read before any is written: one's place may be where another was
            std::vector<uint8_t> data(rows.size()*t->nb[1]);
            for (size_t i = 0; i < rows.size(); ++i) {
                ggml_backend_tensor_get(t, data.data() + i*t->nb[1], rows[i].first*t->nb[1], t->nb[1]);
            }
            for (size_t i = 0; i < rows.size(); ++i) {
                ggml_backend_tensor_set(t, data.data() + i*t->nb[1], rows[i].second*t->nb[1], t->nb[1]);
            }
        }
    }
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
