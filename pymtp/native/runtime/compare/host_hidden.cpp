#include "compare/host_hidden.h"

#include "pair.h"
#include "stopwatch.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

pymtp_host_hidden::pymtp_host_hidden(pymtp_pair & pair) : pair(pair), sequences(pair.sequences.size()) {
    for (rows & r : sequences) {
        r.shifted.assign(pair.n_embd, 0.0f);
    }
}

void pymtp_host_hidden::clear(int32_t seq) {
    sequences[seq] = rows();
    sequences[seq].shifted.assign(pair.n_embd, 0.0f);
}

int pymtp_host_hidden::fetch_from_device(int32_t seq) {
    rows & r = sequences[seq];
    const pymtp_sequence & s = pair.sequences[seq];
    if (r.on_host) {
        return PYMTP_OK;
    }
    if (int status = pair.flush_pending_hidden(1, &seq)) {
        return status;
    }
    r.hidden.assign(pair.n_embd, 0.0f); // zeros, which the first token of a sequence is combined with
    if (s.n_past > 0) {
        pymtp_get_pending_hidden(pair.target.get(), seq, s.n_past, r.hidden.data());
    }
    r.on_host = true;
    return PYMTP_OK;
}

int pymtp_host_hidden::catch_up(int32_t seq) {
    if (int status = fetch_from_device(seq)) {
        return status;
    }
    rows & r = sequences[seq];
    const int32_t n = r.unsynced.size();
    if (int status = sync(seq, n, rows_for(r, n))) {
        return status;
    }
    r.unsynced.clear();
    r.hidden.erase(r.hidden.begin(), r.hidden.begin() + (size_t) n * pair.n_embd);
    return PYMTP_OK;
}

void pymtp_host_hidden::set_last_row(int32_t seq, const float * row) {
    sequences[seq].hidden.assign(row, row + pair.n_embd);
    sequences[seq].on_host = true;
}

int pymtp_host_hidden::move_to_device(int32_t seq) {
    if (int status = catch_up(seq)) {
        return status;
    }
    rows & r = sequences[seq];
    if (pair.sequences[seq].n_past > 0) { // for the first token, the target itself writes zeros
        pymtp_set_pending_hidden(pair.target.get(), seq, pair.sequences[seq].n_past, r.hidden.data());
    }
    r.hidden.clear();
    r.on_host = false;
    return PYMTP_OK;
}

// Returns the hidden states that the first n unsynced tokens are combined with.
const float * pymtp_host_hidden::rows_for(rows & r, int32_t n) {
    if (pair.fault != PYMTP_FAULT_SHIFTED_ROWS) {
        return r.hidden.data();
    }
    r.shifted.erase(r.shifted.begin(), r.shifted.end() - pair.n_embd);
    r.shifted.insert(r.shifted.end(), r.hidden.begin(), r.hidden.begin() + (size_t) n * pair.n_embd);
    return r.shifted.data();
}

// Lets the head process the first n unsynced tokens, without drafting.
int pymtp_host_hidden::sync(int32_t seq, int32_t n, const float * hidden) {
    pymtp_sequence & s = pair.sequences[seq];
    pair.truncate_head(seq);
    for (int32_t n_done = 0; n_done < n;) {
        const int32_t piece = std::min(n - n_done, pair.max_head_rows);
        pair.batch.clear();
        for (int32_t i = n_done; i < n_done + piece; ++i) {
            pair.batch.add(sequences[seq].unsynced[i], s.n_head + i - n_done, seq, false);
        }
        pair.batch.set_rows(hidden + (size_t) n_done * pair.n_embd);
        if (int status = pair.decode(pair.draft.get())) {
            return status;
        }
        n_done     += piece;
        s.n_head += piece;
    }
    return PYMTP_OK;
}

// The hidden state of token i is combined with token i+1, so the last hidden state of this piece is left for the next
// token.
int pymtp_host_hidden::take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset) {
    rows & r = sequences[seq];
    pymtp_stopwatch watch(pair.counters.head_sync_seconds);
    r.unsynced.insert(r.unsynced.end(), tokens, tokens + n);
    if (pair.options.prefill == PYMTP_PREFILL_ALL_OUTPUTS) {
        for (int32_t i = offset; i < offset + n; ++i) {
            const float * row = llama_get_embeddings_ith(pair.target.get(), i);
            r.hidden.insert(r.hidden.end(), row, row + pair.n_embd);
        }
    } else {
        const float * rows = llama_get_embeddings_nextn(pair.target.get()) + (size_t) offset * pair.n_embd;
        r.hidden.insert(r.hidden.end(), rows, rows + (size_t) n * pair.n_embd);
    }
    const int32_t n_sync = r.unsynced.size();
    if (pair.fault == PYMTP_FAULT_EMPTY_HEAD) {
        pair.sequences[seq].n_head += n_sync;
    } else if (int status = sync(seq, n_sync, rows_for(r, n_sync))) {
        return status;
    }
    llama_synchronize(pair.draft.get());
    r.unsynced.clear();
    r.hidden.erase(r.hidden.begin(), r.hidden.begin() + (size_t) n_sync * pair.n_embd);
    return PYMTP_OK;
}

int pymtp_host_hidden::begin_verify(int32_t seq, llama_token first) {
    if (sequences[seq].drafted_from != first) {
        pair.discard_drafts(seq);
    }
    return fetch_from_device(seq);
}

void pymtp_host_hidden::end_verify(int32_t seq, const llama_token * tokens, int32_t n) {
    rows & r = sequences[seq];
    pymtp_sequence & s = pair.sequences[seq];
    // if drafts started from the first of these tokens, the head has already processed it
    const int32_t known = r.drafted_from != LLAMA_TOKEN_NULL ? 1 : 0;
    const float * rows  = llama_get_embeddings_nextn(pair.target.get());
    r.unsynced.insert(r.unsynced.end(), tokens + known, tokens + n);
    r.hidden.insert(r.hidden.end(), rows, rows + (size_t) n * pair.n_embd);
    r.drafted_from = LLAMA_TOKEN_NULL;
    s.n_drafted    = 0;
}

void pymtp_host_hidden::rewind(int32_t seq, int32_t n_keep) {
    const int32_t n = n_keep - pair.sequences[seq].n_head;
    sequences[seq].unsynced.resize(n);
    sequences[seq].hidden.resize((size_t) (n + 1) * pair.n_embd);
}

int pymtp_host_hidden::draft_step(int32_t seq, llama_token token) {
    rows & r = sequences[seq];
    pymtp_sequence & s = pair.sequences[seq];
    // The drafts were made by a chain in one decode, which a single step cannot continue.
    const bool chained = s.n_drafted > 0 && r.drafted_from == LLAMA_TOKEN_NULL;
    if (int status = pair.check_draft(s, token, chained ? 1 : 1 + s.n_drafted)) {
        return status;
    }
    pymtp_stopwatch watch(pair.counters.draft_seconds);
    pair.begin_round();
    if (chained) {
        pair.discard_drafts(seq);
    }
    if (s.n_drafted == 0) {
        if (int status = first_step(seq, token)) {
            return status;
        }
    } else {
        pair.batch.clear();
        pair.batch.add(token, s.n_head + s.n_drafted - 1, seq, true);
        pair.batch.set_rows(r.head_hidden.data());
        if (int status = pair.decode(pair.draft.get())) {
            return status;
        }
    }
    s.n_drafted++;
    s.tokens.push_back(token);
    const float * row = llama_get_embeddings_nextn_ith(pair.draft.get(), -1);
    r.head_hidden.assign(row, row + pair.n_embd);
    return PYMTP_OK;
}

// Runs the first draft step of a round: the head processes its unsynced tokens without outputs, and in the same batch
// the row of `token`, from which it drafts.
int pymtp_host_hidden::first_step(int32_t seq, llama_token token) {
    rows & r = sequences[seq];
    pymtp_sequence & s = pair.sequences[seq];
    if (int status = fetch_from_device(seq)) {
        return status;
    }
    r.drafted_with.assign(r.hidden.end() - pair.n_embd, r.hidden.end());
    r.unsynced.push_back(token);
    const int32_t n      = r.unsynced.size();
    const int32_t extra  = std::max(0, n - pair.max_head_rows);
    const float * hidden = rows_for(r, n);
    if (int status = sync(seq, extra, hidden)) {
        return status;
    }
    pair.batch.clear();
    for (int32_t i = extra; i < n; ++i) {
        pair.batch.add(r.unsynced[i], s.n_head + i - extra, seq, i + 1 == n);
    }
    pair.batch.set_rows(hidden + (size_t) extra * pair.n_embd);
    if (int status = pair.decode(pair.draft.get())) {
        return status;
    }
    s.n_head += n - extra;
    r.unsynced.clear();
    r.hidden.clear();
    r.drafted_from = token;
    s.n_rewind     = 0; // rewinding is impossible without the hidden states of earlier tokens, which were dropped
    return PYMTP_OK;
}

int pymtp_host_hidden::draft_tokens(
        int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences, int32_t & n_made) {
    pymtp_sequence & s = pair.sequences[seq];
    for (int32_t i = 0; i < n; ++i) {
        if (int status = draft_step(seq, token)) {
            return status;
        }
        pymtp_stopwatch watch(pair.counters.sample_seconds);
        const pymtp_logits from = pair.full_row(llama_get_logits_ith(pair.draft.get(), -1));
        if (pair.sample(seq, from, s.tokens.size(), &token, &confidences[i])) {
            n_made = i; // the head's logits are not finite, so the step gave no draft
            break;
        }
        drafts[i] = token;
    }
    return PYMTP_OK;
}

// Undoes the first draft step: the head has yet to process the token again, with the same hidden state.
void pymtp_host_hidden::undo_first_step(int32_t seq) {
    rows & r = sequences[seq];
    if (r.drafted_from == LLAMA_TOKEN_NULL) {
        return;
    }
    pymtp_sequence & s = pair.sequences[seq];
    r.drafted_from = LLAMA_TOKEN_NULL;
    r.hidden       = r.drafted_with;
    s.n_head       = s.n_past;
}
