#include "compare/host_rows.h"

#include "pair.h"
#include "stopwatch.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

pymtp_host_rows::pymtp_host_rows(pymtp_pair & pair) : pair(pair), of(pair.sequences.size()) {
    for (rows & r : of) {
        r.shifted.assign(pair.n_embd, 0.0f);
    }
}

void pymtp_host_rows::clear(int32_t seq) {
    of[seq] = rows();
    of[seq].shifted.assign(pair.n_embd, 0.0f);
}

int pymtp_host_rows::fetch(int32_t seq) {
    rows & r = of[seq];
    const pymtp_sequence & s = pair.sequences[seq];
    if (r.here) {
        return PYMTP_OK;
    }
    if (int status = pair.take_kept(1, &seq)) {
        return status;
    }
    r.hidden.assign(pair.n_embd, 0.0f); // what the first token goes with
    if (s.n_past > 0) {
        pymtp_get_kept_row(pair.target.get(), seq, s.n_past, r.hidden.data());
    }
    r.here = true;
    return PYMTP_OK;
}

int pymtp_host_rows::level(int32_t seq) {
    if (int status = fetch(seq)) {
        return status;
    }
    rows & r = of[seq];
    const int32_t n = r.unsynced.size();
    if (int status = sync(seq, n, rows_for(r, n))) {
        return status;
    }
    r.unsynced.clear();
    r.hidden.erase(r.hidden.begin(), r.hidden.begin() + (size_t) n * pair.n_embd);
    return PYMTP_OK;
}

void pymtp_host_rows::begin_after(int32_t seq, const float * row) {
    of[seq].hidden.assign(row, row + pair.n_embd);
    of[seq].here = true;
}

int pymtp_host_rows::hand_over(int32_t seq) {
    if (int status = level(seq)) {
        return status;
    }
    rows & r = of[seq];
    if (pair.sequences[seq].n_past > 0) { // a first token goes with zeros by itself
        pymtp_set_kept_row(pair.target.get(), seq, pair.sequences[seq].n_past, r.hidden.data());
    }
    r.hidden.clear();
    r.here = false;
    return PYMTP_OK;
}

// The hidden states that go with the first n of the unsynced tokens.
const float * pymtp_host_rows::rows_for(rows & r, int32_t n) {
    if (pair.fault != PYMTP_FAULT_SHIFTED_ROWS) {
        return r.hidden.data();
    }
    r.shifted.erase(r.shifted.begin(), r.shifted.end() - pair.n_embd);
    r.shifted.insert(r.shifted.end(), r.hidden.begin(), r.hidden.begin() + (size_t) n * pair.n_embd);
    return r.shifted.data();
}

// The first n of the unsynced tokens become rows of the head. Nothing is drafted.
int pymtp_host_rows::sync(int32_t seq, int32_t n, const float * hidden) {
    pymtp_sequence & s = pair.sequences[seq];
    pair.drop_drafts(seq);
    for (int32_t done = 0; done < n;) {
        const int32_t piece = std::min(n - done, pair.n_head_rows);
        pair.batch.clear();
        for (int32_t i = done; i < done + piece; ++i) {
            pair.batch.add(of[seq].unsynced[i], s.n_head + i - done, seq, false);
        }
        pair.batch.set_rows(hidden + (size_t) done * pair.n_embd);
        if (int status = pair.decode(pair.draft.get())) {
            return status;
        }
        done     += piece;
        s.n_head += piece;
    }
    return PYMTP_OK;
}

// Row i goes with token i+1, so all rows but the last are followed by a token of this piece.
int pymtp_host_rows::take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset) {
    rows & r = of[seq];
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

int pymtp_host_rows::begin_verify(int32_t seq, llama_token first) {
    if (of[seq].drafted_from != first) {
        pair.take_back_draft(seq);
    }
    return fetch(seq);
}

void pymtp_host_rows::end_verify(int32_t seq, const llama_token * tokens, int32_t n) {
    rows & r = of[seq];
    pymtp_sequence & s = pair.sequences[seq];
    // the head holds the first token already when it was drafted from
    const int32_t known = r.drafted_from != LLAMA_TOKEN_NULL ? 1 : 0;
    const float * rows  = llama_get_embeddings_nextn(pair.target.get());
    r.unsynced.insert(r.unsynced.end(), tokens + known, tokens + n);
    r.hidden.insert(r.hidden.end(), rows, rows + (size_t) n * pair.n_embd);
    r.drafted_from = LLAMA_TOKEN_NULL;
    s.n_chain      = 0;
}

void pymtp_host_rows::rewind(int32_t seq, int32_t n_keep) {
    const int32_t n = n_keep - pair.sequences[seq].n_head;
    of[seq].unsynced.resize(n);
    of[seq].hidden.resize((size_t) (n + 1) * pair.n_embd);
}

int pymtp_host_rows::draft_step(int32_t seq, llama_token token) {
    rows & r = of[seq];
    pymtp_sequence & s = pair.sequences[seq];
    const bool chained = s.n_chain > 0 && r.drafted_from == LLAMA_TOKEN_NULL; // in one launch: no step goes on from that
    if (int status = pair.check_draft(s, token, chained ? 1 : 1 + s.n_chain)) {
        return status;
    }
    pymtp_stopwatch watch(pair.counters.draft_seconds);
    pair.begin_round();
    if (chained) {
        pair.take_back_draft(seq);
    }
    if (s.n_chain == 0) {
        if (int status = first_step(seq, token)) {
            return status;
        }
    } else {
        pair.batch.clear();
        pair.batch.add(token, s.n_head + s.n_chain - 1, seq, true);
        pair.batch.set_rows(r.recycled.data());
        if (int status = pair.decode(pair.draft.get())) {
            return status;
        }
    }
    s.n_chain++;
    s.tokens.push_back(token);
    const float * row = llama_get_embeddings_nextn_ith(pair.draft.get(), -1);
    r.recycled.assign(row, row + pair.n_embd);
    return PYMTP_OK;
}

// What the head has yet to take goes along, without output, before the row that is drafted from.
int pymtp_host_rows::first_step(int32_t seq, llama_token token) {
    rows & r = of[seq];
    pymtp_sequence & s = pair.sequences[seq];
    if (int status = fetch(seq)) {
        return status;
    }
    r.drafted_with.assign(r.hidden.end() - pair.n_embd, r.hidden.end());
    r.unsynced.push_back(token);
    const int32_t n      = r.unsynced.size();
    const int32_t extra  = std::max(0, n - pair.n_head_rows);
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
    s.n_rewind     = 0; // the hidden states of earlier tokens are gone
    return PYMTP_OK;
}

int pymtp_host_rows::draft_tokens(
        int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences, int32_t & n_made) {
    pymtp_sequence & s = pair.sequences[seq];
    for (int32_t i = 0; i < n; ++i) {
        if (int status = draft_step(seq, token)) {
            return status;
        }
        pymtp_stopwatch watch(pair.counters.sample_seconds);
        const pymtp_logits from = pair.row(llama_get_logits_ith(pair.draft.get(), -1));
        if (pair.sample(seq, from, s.tokens.size(), &token, &confidences[i])) {
            n_made = i; // the head gives no numbers
            break;
        }
        drafts[i] = token;
    }
    return PYMTP_OK;
}

// Puts back what the first step took.
void pymtp_host_rows::take_back_step(int32_t seq) {
    rows & r = of[seq];
    if (r.drafted_from == LLAMA_TOKEN_NULL) {
        return;
    }
    pymtp_sequence & s = pair.sequences[seq];
    r.drafted_from = LLAMA_TOKEN_NULL;
    r.hidden       = r.drafted_with;
    s.n_head       = s.n_past;
}
