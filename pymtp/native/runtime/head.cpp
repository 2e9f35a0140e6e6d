// Keeps the head up to date with the target. In the fused mode, the hidden states that the head has yet to process
// ("pending" ones) stay on the device.
#include "pair.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>
#include <vector>

pymtp_pending_hidden_scope::pymtp_pending_hidden_scope(pymtp_pair & pair) : draft(pair.draft.get()) {
    pymtp_use_pending_hidden(draft, pair.target.get());
}

pymtp_pending_hidden_scope::~pymtp_pending_hidden_scope() { pymtp_use_pending_hidden(draft, nullptr); }

// Returns whether the target's graph fills the head's cache. With PYMTP_FAULT_SHIFTED_ROWS it does not, because that
// fault shifts rows on the host.
bool pymtp_pair::is_fused() const {
    return draft && options.prefill == PYMTP_PREFILL_FUSED && fault != PYMTP_FAULT_SHIFTED_ROWS;
}

int32_t pymtp_pair::max_verify_rows() const {
    return std::min(n_outputs, (int32_t) llama_n_ubatch(target.get()));
}

// Sets up the contexts for a prompt, or for a round in the fused mode.
void pymtp_pair::begin_prefill() {
    const bool fused = draft && options.prefill == PYMTP_PREFILL_FUSED;
    llama_set_embeddings(target.get(), options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS));
    if (!draft) {
        return;
    }
    pymtp_set_fused_sync(target.get(), is_fused() ? draft.get() : nullptr, /*deferred =*/ false);
    llama_set_embeddings_nextn(target.get(), !is_fused() && options.prefill != PYMTP_PREFILL_ALL_OUTPUTS,
            /*masked =*/ false);
    // Masked, because otherwise llama.cpp would copy every hidden state of the head to the host.
    llama_set_embeddings_nextn(draft.get(), fused, /*masked =*/ fused);
}

// Sets up the contexts for a round in which hidden states pass through the host.
void pymtp_pair::begin_round() {
    llama_set_embeddings(target.get(), false);
    if (!draft) {
        return;
    }
    pymtp_set_fused_sync(target.get(), nullptr, /*deferred =*/ false);
    llama_set_embeddings_nextn(target.get(), true, /*masked =*/ false);
    llama_set_embeddings_nextn(draft.get(), true, /*masked =*/ true);
}

// Lets the head process all tokens that it lags behind the target, and moves hidden states on the host to the device.
// Afterwards the target's graph can continue to fill the head's cache.
int pymtp_pair::catch_up_head(int32_t n_seqs, const int32_t * seqs) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (host_hidden->holds(seqs[k])) {
            if (int status = host_hidden->move_to_device(seqs[k])) {
                return status;
            }
        }
    }
    return flush_pending_hidden(n_seqs, seqs);
}

// Lets the head process the tokens whose hidden states are pending on the device. Adjacent sequences with the same
// number of such tokens share a decode.
int pymtp_pair::flush_pending_hidden(int32_t n_seqs, const int32_t * seqs) {
    const auto lag = [&](int32_t k) { return sequences[seqs[k]].n_past - sequences[seqs[k]].n_head; };
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && seqs[first + n] == seqs[first] + n && lag(first + n) == lag(first) &&
                (n + 1)*lag(first) <= max_head_rows) {
            ++n;
        }
        while (lag(first) > 0) {
            const int32_t piece = std::min(lag(first), max_head_rows);
            batch.clear();
            for (int32_t k = first; k < first + n; ++k) {
                const pymtp_sequence & s = sequences[seqs[k]];
                for (int32_t i = s.n_head; i < s.n_head + piece; ++i) {
                    batch.add(s.tokens[i], i, seqs[k], false);
                }
            }
            const pymtp_pending_hidden_scope rows(*this);
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

// Prepares a sequence for saving: discards drafts, and lets the head process all tokens that it lags behind, so that
// only the hidden state of the last token remains pending. Hidden states of earlier tokens may be overwritten, so
// nothing can be rewound afterwards.
int pymtp_pair::prepare_save(int32_t seq) {
    sequences[seq].n_rewind = 0;
    if (!draft || sequences[seq].n_past == 0) {
        return PYMTP_OK;
    }
    discard_drafts(seq);
    return is_fused() ? catch_up_head(1, &seq) : host_hidden->catch_up(seq);
}

// Removes the rows of the head's cache that were computed from the head's own hidden states. Rows computed from the
// target's hidden states will replace them.
void pymtp_pair::truncate_head(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(draft.get()), seq, sequences[seq].n_head, -1);
}

// Fills the head's cells of an empty sequence with zeros if they may hold NaN. Attention multiplies unused cells by 0,
// and NaN times 0 is NaN, which would spoil the next text. Staged cells are left unchanged.
void pymtp_pair::zero_head_cells(int32_t seq) {
    const pymtp_sequence & s = sequences[seq];
    if (!s.head_has_nan) {
        return;
    }
    constexpr int32_t cells_per_step = 256;
    const size_t size = pymtp_cell_bytes(draft.get());
    const std::vector<uint8_t> zeros(cells_per_step*size);
    for (int32_t i = s.n_staged; i < n_ctx; i += cells_per_step) {
        pymtp_load_cells(draft.get(), seq, i, std::min(cells_per_step, n_ctx - i), zeros.data(), size);
    }
}

// Discards the drafts of a sequence that were not verified.
void pymtp_pair::discard_drafts(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    if (s.n_drafted == 0) {
        return;
    }
    host_hidden->undo_first_step(seq);
    s.n_drafted = 0;
    s.n_staged  = 0; // drafts of an empty sequence have overwritten the staged cells
    s.tokens.resize(s.n_past);
    truncate_head(seq);
}
