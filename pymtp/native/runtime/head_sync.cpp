#include "head_sync.h"

#include "compare/faults.h"

#include "pymtp_context.h"

#include <algorithm>

pymtp_pending_hidden_scope::pymtp_pending_hidden_scope(pymtp_contexts & contexts) : draft(contexts.draft.get()) {
    pymtp_use_pending_hidden(draft, contexts.target.get());
}

pymtp_pending_hidden_scope::~pymtp_pending_hidden_scope() { pymtp_use_pending_hidden(draft, nullptr); }

pymtp_head_sync::pymtp_head_sync(pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences) :
    contexts(contexts), sequences(sequences), host_hidden(*this, contexts, sequences) {}

void pymtp_head_sync::begin_prefill(int32_t seq) {
    if (!contexts.draft) {
        return;
    }
    discard_drafts(seq);
    if (contexts.is_fused()) {
        catch_up(1, &seq);
    } else {
        host_hidden.fetch_from_device(seq);
    }
}

void pymtp_head_sync::end_prefill(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset) {
    if (contexts.is_fused()) {
        sequences[seq].set_head(sequences[seq].n_head() + n);
        pymtp_fault_in_prefill(contexts, seq);
    } else if (contexts.draft) {
        host_hidden.take_prompt(seq, tokens, n, offset);
    }
}

void pymtp_head_sync::begin_verify(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n) {
    if (!contexts.is_fused()) {
        contexts.begin_host_round();
        if (contexts.draft) {
            host_hidden.begin_verify(seqs[0], tokens[0]);
        }
        return;
    }
    contexts.begin_prefill();
    llama_set_embeddings(contexts.target.get(), false);
    for (int32_t k = 0; k < n_seqs; ++k) {
        discard_drafts(seqs[k]);
    }
    // For single tokens, the head may lag behind for a while: it processes many tokens in little more time than one.
    const auto may_wait = [this](int32_t seq) {
        return !host_hidden.holds(seq) && sequences[seq].lag() < PYMTP_MAX_HEAD_LAG;
    };
    if (n > 1 || !std::all_of(seqs, seqs + n_seqs, may_wait)) {
        catch_up(n_seqs, seqs);
    }
    pymtp_set_fused_sync(contexts.target.get(), contexts.draft.get(), /*deferred =*/ n == 1);
}

void pymtp_head_sync::end_verify(int32_t seq, const llama_token * tokens, int32_t n) {
    if (contexts.is_fused()) {
        sequences[seq].set_head(sequences[seq].n_head() + (n > 1 ? n : 0));
    } else if (contexts.draft) {
        host_hidden.end_verify(seq, tokens, n);
    }
}

void pymtp_head_sync::rewind(int32_t seq) {
    if (!contexts.draft) {
        return;
    }
    if (host_hidden.holds(seq)) {
        host_hidden.rewind(seq);
    } else {
        sequences[seq].set_head(sequences[seq].n_past());
        truncate(seq);
    }
}

void pymtp_head_sync::catch_up(int32_t n_seqs, const int32_t * seqs) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (host_hidden.holds(seqs[k])) {
            host_hidden.move_to_device(seqs[k]);
        }
    }
    flush(n_seqs, seqs);
}

void pymtp_head_sync::flush(int32_t n_seqs, const int32_t * seqs) {
    const auto lag = [&](int32_t k) { return sequences[seqs[k]].lag(); };
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && seqs[first + n] == seqs[first] + n && lag(first + n) == lag(first) &&
                (n + 1)*lag(first) <= contexts.max_head_rows) {
            ++n;
        }
        while (lag(first) > 0) {
            const int32_t piece = std::min(lag(first), contexts.max_head_rows);
            contexts.batch.clear();
            for (int32_t k = first; k < first + n; ++k) {
                const pymtp_sequence & s = sequences[seqs[k]];
                for (int32_t i = s.n_head(); i < s.n_head() + piece; ++i) {
                    contexts.batch.add(s.tokens()[i], i, seqs[k], false);
                }
            }
            const pymtp_pending_hidden_scope rows(contexts);
            contexts.decode(contexts.draft.get());
            for (int32_t k = first; k < first + n; ++k) {
                sequences[seqs[k]].set_head(sequences[seqs[k]].n_head() + piece);
            }
        }
    }
}

void pymtp_head_sync::discard_drafts(int32_t seq) {
    if (sequences[seq].n_drafted() > 0) {
        host_hidden.undo_first_step(seq);
        sequences[seq].discard_drafts();
        truncate(seq);
    }
}

void pymtp_head_sync::truncate(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(contexts.draft.get()), seq, sequences[seq].n_head(), -1);
}

void pymtp_head_sync::clear(int32_t seq) {
    if (!contexts.draft) {
        return;
    }
    llama_memory_seq_rm(llama_get_memory(contexts.draft.get()), seq, -1, -1);
    if (sequences[seq].head_has_nan) {
        zero_cells(seq);
    }
    host_hidden.clear(seq);
}

// Fills the head's cells of an empty sequence with zeros. Attention multiplies unused cells by 0, and NaN times 0 is
// NaN, which would spoil the next text. Staged cells are left unchanged. When the call is cancelled, the next clear()
// goes on.
void pymtp_head_sync::zero_cells(int32_t seq) {
    constexpr int32_t cells_per_step = 256;
    const size_t size = pymtp_cell_bytes(contexts.draft.get());
    const std::vector<uint8_t> zeros(cells_per_step*size);
    for (int32_t i = sequences[seq].n_staged(); i < contexts.n_ctx; i += cells_per_step) {
        const int32_t n = std::min(cells_per_step, contexts.n_ctx - i);
        if (!pymtp_load_cells(contexts.draft.get(), seq, i, n, zeros.data(), size)) {
            return;
        }
    }
    sequences[seq].head_has_nan = sequences[seq].n_staged() > 0;
}

void pymtp_head_sync::prepare_save(int32_t seq) {
    sequences[seq].forbid_rewind();
    if (!contexts.draft || sequences[seq].n_past() == 0) {
        return;
    }
    discard_drafts(seq);
    if (contexts.is_fused()) {
        catch_up(1, &seq);
    } else {
        host_hidden.catch_up(seq);
    }
}

void pymtp_head_sync::read_row(int32_t seq, float * row) {
    if (host_hidden.holds(seq)) {
        std::copy_n(host_hidden.last_row(seq), contexts.n_embd, row);
    } else {
        pymtp_get_pending_hidden(contexts.target.get(), seq, sequences[seq].n_past(), row);
    }
}

void pymtp_head_sync::write_row(int32_t seq, const float * row) {
    if (contexts.is_fused()) {
        pymtp_set_pending_hidden(contexts.target.get(), seq, sequences[seq].n_past(), row);
    } else {
        host_hidden.set_last_row(seq, row);
    }
}
