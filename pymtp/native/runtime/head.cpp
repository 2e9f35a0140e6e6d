// Keeps the head level with the target in the fused mode: its rows, and the hidden states that they wait for, stay on the
// device.
#include "pair.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

pymtp_kept_rows::pymtp_kept_rows(pymtp_pair & pair) : draft(pair.draft.get()) { pymtp_take_kept_rows(draft, pair.target.get()); }
pymtp_kept_rows::~pymtp_kept_rows() { pymtp_take_kept_rows(draft, nullptr); }

// Whether the target's graph fills the head's cache. Rows are shifted on purpose on the host.
bool pymtp_pair::fuses() const {
    return draft && options.prefill == PYMTP_PREFILL_FUSED && fault != PYMTP_FAULT_SHIFTED_ROWS;
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
    pymtp_set_snapshots(target.get(), !fused);
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
    pymtp_set_snapshots(target.get(), true);
    llama_set_embeddings_nextn(draft.get(), true, /*masked =*/ true);
}

// Before the target's graph fills the head's cache: the head takes what it has yet to take.
int pymtp_pair::settle(int32_t seq) {
    return host->holds(seq) ? host->hand_over(seq) : take_kept(seq);
}

// The head takes the tokens that it was left behind by: their hidden states are kept on the device.
int pymtp_pair::take_kept(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    while (s.n_head < s.n_past) {
        const int32_t piece = std::min(s.n_past - s.n_head, n_head_rows);
        batch.clear();
        for (int32_t i = s.n_head; i < s.n_head + piece; ++i) {
            batch.add(s.tokens[i], i, seq, false);
        }
        const pymtp_kept_rows rows(*this);
        if (int status = decode(draft.get())) {
            return status;
        }
        s.n_head += piece;
    }
    return PYMTP_OK;
}

// Frees the head's rows that stand on its own hidden states: the true ones are to take their place.
void pymtp_pair::drop_drafts(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(draft.get()), seq, sequences[seq].n_head, -1);
}

// Forgets what was drafted after the tokens that the target holds.
void pymtp_pair::take_back_draft(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    if (s.n_chain == 0) {
        return;
    }
    host->take_back_step(seq);
    s.n_chain = 0;
    s.tokens.resize(s.n_past);
    drop_drafts(seq);
}
