// Prompts. In the fused mode the target's own graph fills the head's cache, and no hidden state leaves the device; the
// other modes are what llama.cpp does by itself (host copies) and what the first implementations did (all outputs).
#include "host.h"
#include "pair.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

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

// Before the target's graph takes over: the head takes what it has yet to take, and hands over the last hidden state.
int pymtp_pair::settle(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    if (s.on_device) {
        return take_kept(seq);
    }
    const int32_t n = s.unsynced.size();
    if (int status = sync(seq, n, rows_for(s, n))) {
        return status;
    }
    if (s.n_past > 0) { // a first token goes with zeros by itself
        pymtp_set_kept_row(target.get(), seq, s.n_past, s.hidden.data() + (size_t) n * n_embd);
    }
    s.unsynced.clear();
    s.hidden.clear();
    s.on_device = true;
    return PYMTP_OK;
}

// The hidden states of n tokens, from row `offset` of the batch, on their way through the host. Row i goes with token
// i+1, so all but the last are followed by a token of this piece.
int pymtp_pair::take_rows(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset) {
    pymtp_sequence & s = sequences[seq];
    s.unsynced.insert(s.unsynced.end(), tokens, tokens + n);
    if (options.prefill == PYMTP_PREFILL_ALL_OUTPUTS) {
        for (int32_t i = offset; i < offset + n; ++i) {
            const float * row = llama_get_embeddings_ith(target.get(), i);
            s.hidden.insert(s.hidden.end(), row, row + n_embd);
        }
    } else {
        const float * rows = llama_get_embeddings_nextn(target.get()) + (size_t) offset * n_embd;
        s.hidden.insert(s.hidden.end(), rows, rows + (size_t) n * n_embd);
    }
    const int32_t n_sync = s.unsynced.size();
    if (fault == PYMTP_FAULT_EMPTY_HEAD) {
        s.n_head += n_sync;
    } else if (int status = sync(seq, n_sync, rows_for(s, n_sync))) {
        return status;
    }
    llama_synchronize(draft.get());
    s.unsynced.clear();
    s.hidden.erase(s.hidden.begin(), s.hidden.begin() + (size_t) n_sync * n_embd);
    return PYMTP_OK;
}

int pymtp_pair::prefill(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all) {
    if (n_seqs < 1) {
        pymtp_set_error("a prompt is needed");
        return PYMTP_INVALID;
    }
    int32_t n_all = 0;
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (!check_seq(seqs[k]) || (k > 0 && seqs[k] <= seqs[k - 1])) {
            pymtp_set_error("sequences must be given once each, in order, from 0 to " + std::to_string(options.n_seq_max - 1));
            return PYMTP_INVALID;
        }
        if (lengths[k] < 1) {
            pymtp_set_error("a prompt needs at least one token");
            return PYMTP_INVALID;
        }
        if (int status = check_room(sequences[seqs[k]], lengths[k])) {
            return status;
        }
        n_all += lengths[k];
    }
    begin_prefill();
    const bool fused = fuses();
    for (int32_t k = 0; draft && k < n_seqs; ++k) {
        take_back_draft(seqs[k]);
        if (fused) {
            if (int status = settle(seqs[k])) {
                return status;
            }
        } else if (int status = fetch_hidden(seqs[k])) {
            return status;
        }
    }

    // every token is an output when embeddings are on
    const bool    every = all || options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    const int32_t limit = every ? std::min(n_batch, n_outputs) : n_batch;
    for (pymtp_sequence & s : sequences) {
        s.first_logits = nullptr;
    }
    logits.resize((size_t) n_vocab * (all ? n_all : n_seqs));
    embeddings.resize(options.embeddings ? (size_t) n_embd * n_all : 0);

    std::vector<int32_t> start(n_seqs, 0); // of each sequence's tokens among all
    for (int32_t k = 1; k < n_seqs; ++k) {
        start[k] = start[k - 1] + lengths[k - 1];
    }
    std::vector<int32_t> done(n_seqs, 0);
    std::vector<int32_t> take(n_seqs, 0);
    while (true) {
        int32_t n_active = 0;
        for (int32_t k = 0; k < n_seqs; ++k) {
            n_active += done[k] < lengths[k];
        }
        if (n_active == 0) {
            for (int32_t k = 0; k < n_seqs; ++k) {
                sequences[seqs[k]].first_logits = logits.data() + (size_t) n_vocab * (all ? start[k] + lengths[k] - 1 : k);
            }
            return PYMTP_OK;
        }
        const int32_t share = std::max(1, limit / n_active);
        batch.clear();
        for (int32_t k = 0; k < n_seqs; ++k) {
            take[k] = std::min({share, lengths[k] - done[k], limit - batch.size()});
            for (int32_t i = done[k]; i < done[k] + take[k]; ++i) {
                batch.add(tokens[start[k] + i], sequences[seqs[k]].n_past + i - done[k], seqs[k],
                        every || fault == PYMTP_FAULT_MORE_OUTPUTS || i + 1 == lengths[k]);
            }
        }
        {
            pymtp_stopwatch watch(counters.prefill_seconds);
            if (int status = decode(target.get())) {
                return status;
            }
            llama_synchronize(target.get());
        }
        for (int32_t k = 0, offset = 0; k < n_seqs; offset += take[k], ++k) {
            pymtp_sequence & s = sequences[seqs[k]];
            if (take[k] == 0) {
                continue;
            }
            s.n_past  += take[k];
            s.n_rewind = 0;
            s.tokens.insert(s.tokens.end(), tokens + start[k] + done[k], tokens + start[k] + done[k] + take[k]);
            for (int32_t i = 0; i < take[k]; ++i) {
                const bool last = done[k] + i + 1 == lengths[k];
                if (all || last) {
                    const float * row = llama_get_logits_ith(target.get(), offset + i);
                    std::copy(row, row + n_vocab, logits.begin() + (size_t) n_vocab * (all ? start[k] + done[k] + i : k));
                }
                if (options.embeddings) {
                    const float * row = llama_get_embeddings_ith(target.get(), offset + i);
                    std::copy(row, row + n_embd, embeddings.begin() + (size_t) n_embd * (start[k] + done[k] + i));
                }
            }
            if (fused) {
                s.n_head += take[k];
                if (fault == PYMTP_FAULT_EMPTY_HEAD) {
                    llama_memory_seq_rm(llama_get_memory(draft.get()), seqs[k], 0, -1);
                }
            } else if (draft) {
                pymtp_stopwatch watch(counters.head_sync_seconds);
                if (int status = take_rows(seqs[k], tokens + start[k] + done[k], take[k], offset)) {
                    return status;
                }
            }
        }
        for (int32_t k = 0; k < n_seqs; ++k) {
            done[k] += take[k];
        }
    }
}
