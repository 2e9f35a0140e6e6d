// Rounds: draft, verify, rewind.
//
// In the fused mode a round is two launches. The target's graph verifies and fills the head's cache for all rows, as in a
// prompt; what was not accepted is taken back in both caches. The draft context's graph holds the whole chain of drafts.
// Hidden states stay on the device, and how many drafts were accepted changes neither graph. Without drafts, the target's
// graph only keeps the hidden states, and the head takes up to 63 tokens together before the next draft.
//
// Where hidden states go through the host (the other modes, and draft_step, which hands out logits), the head takes the
// rows that were accepted with the first draft step of the next round.
#include "sample_job.h"
#include "host.h"
#include "pair.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

// While it lives, batches of the draft context go with the hidden rows that the target keeps.
class pymtp_kept_rows {
public:
    explicit pymtp_kept_rows(pymtp_pair & pair) : draft(pair.draft.get()) { pymtp_take_kept_rows(draft, pair.target.get()); }
    ~pymtp_kept_rows() { pymtp_take_kept_rows(draft, nullptr); }

private:
    llama_context * draft;
};

// The hidden states that go with the first n of the unsynced tokens.
const float * pymtp_pair::rows_for(pymtp_sequence & s, int32_t n) {
    if (fault != PYMTP_FAULT_SHIFTED_ROWS) {
        return s.hidden.data();
    }
    s.shifted.erase(s.shifted.begin(), s.shifted.end() - n_embd);
    s.shifted.insert(s.shifted.end(), s.hidden.begin(), s.hidden.begin() + (size_t) n * n_embd);
    return s.shifted.data();
}

// The first n of the unsynced tokens become rows of the head, from the target's hidden states. Nothing is drafted.
int pymtp_pair::sync(int32_t seq, int32_t n, const float * rows) {
    pymtp_sequence & s = sequences[seq];
    drop_drafts(seq);
    for (int32_t done = 0; done < n;) {
        const int32_t piece = std::min(n - done, n_head_rows);
        batch.clear();
        for (int32_t i = done; i < done + piece; ++i) {
            batch.add(s.unsynced[i], s.n_head + i - done, seq, false);
        }
        batch.set_rows(rows + (size_t) done * n_embd);
        if (int status = decode(draft.get())) {
            return status;
        }
        done     += piece;
        s.n_head += piece;
    }
    return PYMTP_OK;
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

// The hidden state that the next token goes with, from the device to the host.
int pymtp_pair::fetch_hidden(int32_t seq) {
    pymtp_sequence & s = sequences[seq];
    if (s.on_device) {
        if (int status = take_kept(seq)) {
            return status;
        }
        s.hidden.resize(n_embd);
        pymtp_get_kept_row(target.get(), seq, s.n_past, s.hidden.data());
        s.on_device = false;
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
    if (s.drafted_from != LLAMA_TOKEN_NULL) {
        s.drafted_from = LLAMA_TOKEN_NULL;
        s.n_head       = s.n_past;
        s.hidden       = s.drafted_with;
    }
    s.n_chain = 0;
    s.tokens.resize(s.n_past);
    drop_drafts(seq);
}

int pymtp_pair::check_draft(const pymtp_sequence & s, int32_t n) const {
    if (!draft || n < 1 || n > options.n_draft) {
        pymtp_set_error("at most " + std::to_string(options.n_draft) + " drafts a round");
        return PYMTP_INVALID;
    }
    return check_room(s, n);
}

// One step, whose logits are wanted: hidden states go through the host.
int pymtp_pair::draft_step(int32_t seq, llama_token token) {
    pymtp_sequence & s = sequences[seq];
    const bool sampled = s.n_chain > 0 && s.drafted_from == LLAMA_TOKEN_NULL; // a chain in one launch, not to be gone on with
    int status = check_draft(s, sampled ? 1 : 1 + s.n_chain);
    if (status) {
        return status;
    }
    pymtp_stopwatch watch(counters.draft_seconds);
    begin_round();
    if (sampled) {
        take_back_draft(seq);
    }
    if (s.n_chain == 0) {
        // what the head has yet to take goes along, without output, before the row that is drafted from
        if ((status = fetch_hidden(seq))) {
            return status;
        }
        s.drafted_with.assign(s.hidden.end() - n_embd, s.hidden.end());
        s.unsynced.push_back(token);
        const int32_t n     = s.unsynced.size();
        const int32_t extra = std::max(0, n - n_head_rows);
        const float * rows  = rows_for(s, n);
        if ((status = sync(seq, extra, rows))) {
            return status;
        }
        batch.clear();
        for (int32_t i = extra; i < n; ++i) {
            batch.add(s.unsynced[i], s.n_head + i - extra, seq, i + 1 == n);
        }
        batch.set_rows(rows + (size_t) extra * n_embd);
        if ((status = decode(draft.get()))) {
            return status;
        }
        s.n_head += n - extra;
        s.unsynced.clear();
        s.hidden.clear();
        s.drafted_from = token;
        s.n_rewind     = 0; // the hidden states of earlier tokens are gone
    } else {
        batch.clear();
        batch.add(token, s.n_head + s.n_chain - 1, seq, true);
        batch.set_rows(s.recycled.data());
        if ((status = decode(draft.get()))) {
            return status;
        }
    }
    s.n_chain++;
    s.tokens.push_back(token);
    const float * row = llama_get_embeddings_nextn_ith(draft.get(), -1);
    s.recycled.assign(row, row + n_embd);
    return PYMTP_OK;
}

int pymtp_pair::draft_tokens(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    pymtp_sequence & s = sequences[seq];
    if (int status = check_draft(s, n)) {
        return status;
    }
    if (fuses()) {
        return draft_chain(seq, token, n, drafts, confidences);
    }
    for (int32_t i = 0; i < n; ++i) {
        if (int status = draft_step(seq, token)) {
            return status;
        }
        const pymtp_logits from = row(llama_get_logits_ith(draft.get(), -1));
        if (int status = sampled(seq, sample(seq, from, s.tokens.size(), &token, &confidences[i]), s.tokens.size())) {
            return status;
        }
        drafts[i] = token;
    }
    return PYMTP_OK;
}

// All steps in one launch.
int pymtp_pair::draft_chain(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    pymtp_sequence & s = sequences[seq];
    pymtp_stopwatch watch(counters.draft_seconds);
    take_back_draft(seq);
    if (int status = settle(seq)) {
        return status;
    }
    batch.clear();
    for (int32_t i = 0; i < n; ++i) {
        batch.add(token, s.n_past + i, fault == PYMTP_FAULT_MIXED_CHAIN ? (seq + i) % options.n_seq_max : seq, false);
    }
    s.tokens.push_back(token);
    s.n_rewind = 0;
    s.n_chain  = n;
    pymtp_sample_job job = {this, seq, s.tokens.size(), nullptr, n, drafts, confidences};
    const pymtp_kept_rows rows(*this);
    return decode_and_sample(draft.get(), job);
}

// Takes n tokens through the target, of which all but the first can be taken back. The logits of each row are left in the
// target context, or sampled from where there is a job.
int pymtp_pair::verify(int32_t seq, const llama_token * tokens, int32_t n, pymtp_sample_job * job) {
    pymtp_sequence & s = sequences[seq];
    if (n < 1 || n > 1 + options.n_draft) {
        pymtp_set_error("verification takes 1 to " + std::to_string(1 + options.n_draft) + " tokens, not " + std::to_string(n));
        return PYMTP_INVALID;
    }
    if (int status = check_room(s, n)) {
        return status;
    }
    pymtp_stopwatch watch(counters.verify_seconds);
    const bool fused = fuses();
    if (fused) {
        begin_prefill();
        llama_set_embeddings(target.get(), false);
        pymtp_set_snapshots(target.get(), n > 1);
        take_back_draft(seq);
        // one by one, tokens leave the head behind for a while: it takes many for little more than one
        const bool defer = n == 1 && s.on_device && s.n_past - s.n_head < PYMTP_MOST_KEPT;
        if (!defer) {
            if (int status = settle(seq)) {
                return status;
            }
        }
        pymtp_set_sync(target.get(), draft.get(), n == 1);
    } else {
        begin_round();
        if (draft && s.drafted_from != tokens[0]) {
            take_back_draft(seq);
        }
        if (int status = fetch_hidden(seq)) {
            return status;
        }
    }
    batch.clear();
    for (int32_t i = 0; i < n; ++i) {
        batch.add(tokens[i], s.n_past + i, seq, true);
    }
    const int32_t n_before = s.n_past;
    s.tokens.resize(n_before);
    s.tokens.insert(s.tokens.end(), tokens, tokens + n);
    if (int status = job ? decode_and_sample(target.get(), *job) : decode(target.get())) {
        return status;
    }
    llama_synchronize(target.get());
    s.n_past  += n;
    s.n_rewind = n - 1;
    s.first_logits = nullptr;
    if (fused) {
        s.n_head += n > 1 ? n : 0;
    } else if (draft) {
        // the head holds the first token already when it was drafted from
        const int32_t known = s.n_head > n_before ? 1 : 0;
        const float * rows = llama_get_embeddings_nextn(target.get());
        s.unsynced.insert(s.unsynced.end(), tokens + known, tokens + n);
        s.hidden.insert(s.hidden.end(), rows, rows + (size_t) n * n_embd);
        s.drafted_from = LLAMA_TOKEN_NULL;
        s.n_chain      = 0;
    }
    return PYMTP_OK;
}

int pymtp_pair::verify_tokens(
        int32_t seq, const llama_token * tokens, int32_t n, llama_token * sampled, int32_t * n_sampled) {
    pymtp_sample_job job = {this, seq, (size_t) sequences[seq].n_past + 1, tokens, n, sampled};
    logprobs.clear();
    const int status = verify(seq, tokens, n, &job);
    *n_sampled = job.n_sampled;
    return status;
}

int pymtp_pair::rewind(int32_t seq, int32_t n_keep) {
    pymtp_sequence & s = sequences[seq];
    pymtp_stopwatch watch(counters.rewind_seconds);
    const int32_t n_drop = s.n_past - n_keep;
    if (n_drop < 0 || n_drop > s.n_rewind) {
        pymtp_set_error("cannot go back from " + std::to_string(s.n_past) + " tokens to " + std::to_string(n_keep) +
                ", only " + std::to_string(s.n_rewind) + " can be taken back");
        return PYMTP_INVALID;
    }
    if (n_drop == 0) {
        return PYMTP_OK;
    }
    if (!pymtp_rewind(target.get(), seq, n_keep)) {
        clear();
        pymtp_set_error("the recurrent layers hold no state at " + std::to_string(n_keep) + " tokens");
        return PYMTP_FAILED;
    }
    s.n_past   = n_keep;
    s.n_rewind = 0; // a snapshot serves once, until the next decode
    s.tokens.resize(n_keep);
    if (s.on_device) {
        s.n_head = n_keep;
        drop_drafts(seq);
    } else if (draft) {
        s.unsynced.resize(n_keep - s.n_head);
        s.hidden.resize((size_t) (n_keep - s.n_head + 1) * n_embd);
    }
    return PYMTP_OK;
}
