// Keeps the head level with the target in the fused mode: its rows, and the hidden states that they wait for, stay on the
// device.
#include "pair.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>
#include <vector>

pymtp_kept_rows::pymtp_kept_rows(pymtp_pair & pair) : draft(pair.draft.get()) { pymtp_take_kept_rows(draft, pair.target.get()); }
pymtp_kept_rows::~pymtp_kept_rows() { pymtp_take_kept_rows(draft, nullptr); }

// Whether the target's graph fills the head's cache. Rows are shifted on purpose on the host.
bool pymtp_pair::fuses() const {
    return draft && options.prefill == PYMTP_PREFILL_FUSED && fault != PYMTP_FAULT_SHIFTED_ROWS;
}

int32_t pymtp_pair::most_rows() const {
    return std::min(n_outputs, (int32_t) llama_n_ubatch(target.get()));
}

// Nothing of a prompt is taken back, so the recurrent layers need not be ready for it.
void pymtp_pair::begin_prefill() {
    const bool fused = draft && options.prefill == PYMTP_PREFILL_FUSED;
    llama_set_embeddings(target.get(), options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS));
    if (!draft) {
        return;
    }
    pymtp_set_sync(target.get(), fuses() ? draft.get() : nullptr, /*defer =*/ false);
    llama_set_embeddings_nextn(target.get(), !fuses() && options.prefill != PYMTP_PREFILL_ALL_OUTPUTS, /*masked =*/ false);
    // unmasked, every hidden row of the head's is copied to the host, as llama.cpp's own are
    llama_set_embeddings_nextn(draft.get(), fused, /*masked =*/ fused);
}

// Rounds whose hidden states go through the host.
void pymtp_pair::begin_round() {
    llama_set_embeddings(target.get(), false);
    if (!draft) {
        return;
    }
    pymtp_set_sync(target.get(), nullptr, /*defer =*/ false);
    llama_set_embeddings_nextn(target.get(), true, /*masked =*/ false);
    llama_set_embeddings_nextn(draft.get(), true, /*masked =*/ true);
}

// Before the target's graph fills the head's cache: the head takes what it has yet to take.
int pymtp_pair::settle(int32_t n_seqs, const int32_t * seqs) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (host->holds(seqs[k])) {
            if (int status = host->hand_over(seqs[k])) {
                return status;
            }
        }
    }
    return take_kept(n_seqs, seqs);
}

// The head takes the tokens that it was left behind by: their hidden states are kept on the device. Sequences side by side
// that it was left behind by as many take one launch.
int pymtp_pair::take_kept(int32_t n_seqs, const int32_t * seqs) {
    const auto lag = [&](int32_t k) { return sequences[seqs[k]].n_past - sequences[seqs[k]].n_head; };
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && seqs[first + n] == seqs[first] + n && lag(first + n) == lag(first) &&
                (n + 1)*lag(first) <= n_head_rows) {
            ++n;
        }
        while (lag(first) > 0) {
            const int32_t piece = std::min(lag(first), n_head_rows);
            batch.clear();
            for (int32_t k = first; k < first + n; ++k) {
                const pymtp_sequence & s = sequences[seqs[k]];
                for (int32_t i = s.n_head; i < s.n_head + piece; ++i) {
                    batch.add(s.tokens[i], i, seqs[k], false);
                }
            }
            const pymtp_kept_rows rows(*this);
            if (int status = decode(draft.get())) {
                return status;
            }
            for (int32_t k = first; k < first + n; ++k) {
                sequences[seqs[k]].n_head += piece;
            }
        }
    }
    return PYMTP_OK;
}

// Before what a sequence holds is saved: what was drafted is forgotten, the head takes what it has yet to take, and one hidden
// state is left. Those of earlier tokens may be gone: nothing can be taken back from here.
int pymtp_pair::level(int32_t seq) {
    sequences[seq].n_rewind = 0;
    if (!draft || sequences[seq].n_past == 0) {
        return PYMTP_OK;
    }
    take_back_draft(seq);
    return fuses() ? settle(1, &seq) : host->level(seq);
}

// Frees the head's rows that stand on its own hidden states: the true ones are to take their place.
void pymtp_pair::drop_drafts(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(draft.get()), seq, sequences[seq].n_head, -1);
}

// Of an empty sequence: attention multiplies what the cells of no token hold with 0, and NaN times 0 is NaN in the next text.
// What was put into its first cells stays.
void pymtp_pair::wipe_head(int32_t seq) {
    const pymtp_sequence & s = sequences[seq];
    if (!s.odd_cells) {
        return;
    }
    constexpr int32_t n_together = 256;
    const size_t size = pymtp_cell_bytes(draft.get());
    const std::vector<uint8_t> zeros(n_together*size);
    for (int32_t i = s.n_staged; i < n_ctx; i += n_together) {
        pymtp_load_cells(draft.get(), seq, i, std::min(n_together, n_ctx - i), zeros.data(), size);
    }
}

// Forgets what was drafted after the tokens that the target holds.
void pymtp_pair::take_back_draft(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    if (s.n_chain == 0) {
        return;
    }
    host->take_back_step(seq);
    s.n_chain  = 0;
    s.n_staged = 0; // the drafts of an empty sequence were written there
    s.tokens.resize(s.n_past);
    drop_drafts(seq);
}
