#include "compare/host_hidden.h"

#include "head_sync.h"
#include "stopwatch.h"

#include "llama-ext.h"
#include "pymtp_context.h"

#include <algorithm>

pymtp_host_hidden::pymtp_host_hidden(
        pymtp_head_sync & head, pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences) :
    head(head), contexts(contexts), sequences(sequences), rows_of(sequences.size()) {
    for (size_t seq = 0; seq < rows_of.size(); ++seq) {
        clear(seq);
    }
}

void pymtp_host_hidden::clear(int32_t seq) {
    rows_of[seq] = rows();
    rows_of[seq].shifted.assign(contexts.n_embd, 0.0f);
}

void pymtp_host_hidden::fetch_from_device(int32_t seq) {
    rows & r = rows_of[seq];
    const pymtp_sequence & s = sequences[seq];
    if (r.on_host) {
        return;
    }
    head.flush(1, &seq);
    r.hidden.assign(contexts.n_embd, 0.0f); // zeros, which the first token of a sequence is combined with
    if (s.n_past() > 0) {
        pymtp_get_pending_hidden(contexts.target.get(), seq, s.n_past(), r.hidden.data());
    }
    r.on_host = true;
}

void pymtp_host_hidden::catch_up(int32_t seq) {
    fetch_from_device(seq);
    rows & r = rows_of[seq];
    const int32_t n = r.unsynced.size();
    sync(seq, n, rows_for(r, n));
    r.unsynced.clear();
    r.hidden.erase(r.hidden.begin(), r.hidden.begin() + (size_t) n * contexts.n_embd);
}

void pymtp_host_hidden::set_last_row(int32_t seq, const float * row) {
    rows_of[seq].hidden.assign(row, row + contexts.n_embd);
    rows_of[seq].on_host = true;
}

void pymtp_host_hidden::move_to_device(int32_t seq) {
    catch_up(seq);
    rows & r = rows_of[seq];
    if (sequences[seq].n_past() > 0) { // for the first token, the target itself writes zeros
        pymtp_set_pending_hidden(contexts.target.get(), seq, sequences[seq].n_past(), r.hidden.data());
    }
    r.hidden.clear();
    r.on_host = false;
}

// Returns the hidden states that the first n unsynced tokens are combined with.
const float * pymtp_host_hidden::rows_for(rows & r, int32_t n) {
    if (contexts.fault != PYMTP_FAULT_SHIFTED_ROWS) {
        return r.hidden.data();
    }
    r.shifted.erase(r.shifted.begin(), r.shifted.end() - contexts.n_embd);
    r.shifted.insert(r.shifted.end(), r.hidden.begin(), r.hidden.begin() + (size_t) n * contexts.n_embd);
    return r.shifted.data();
}

// Lets the head process the first n unsynced tokens, without drafting.
void pymtp_host_hidden::sync(int32_t seq, int32_t n, const float * hidden) {
    pymtp_sequence & s = sequences[seq];
    head.truncate(seq);
    for (int32_t n_done = 0; n_done < n;) {
        const int32_t piece = std::min(n - n_done, contexts.max_head_rows);
        contexts.batch.clear();
        for (int32_t i = n_done; i < n_done + piece; ++i) {
            contexts.batch.add(rows_of[seq].unsynced[i], s.n_head() + i - n_done, seq, false);
        }
        contexts.batch.set_rows(hidden + (size_t) n_done * contexts.n_embd);
        contexts.decode(contexts.draft.get());
        n_done += piece;
        s.set_head(s.n_head() + piece);
    }
}

// The hidden state of token i is combined with token i+1, so the last hidden state of this piece is left for the next
// token.
void pymtp_host_hidden::take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset) {
    rows & r = rows_of[seq];
    pymtp_stopwatch watch(contexts.counters.head_sync_seconds);
    r.unsynced.insert(r.unsynced.end(), tokens, tokens + n);
    if (contexts.options.prefill == PYMTP_PREFILL_ALL_OUTPUTS) {
        for (int32_t i = offset; i < offset + n; ++i) {
            const float * row = llama_get_embeddings_ith(contexts.target.get(), i);
            r.hidden.insert(r.hidden.end(), row, row + contexts.n_embd);
        }
    } else {
        const float * rows = llama_get_embeddings_nextn(contexts.target.get()) + (size_t) offset * contexts.n_embd;
        r.hidden.insert(r.hidden.end(), rows, rows + (size_t) n * contexts.n_embd);
    }
    const int32_t n_sync = r.unsynced.size();
    if (contexts.fault == PYMTP_FAULT_EMPTY_HEAD) {
        sequences[seq].set_head(sequences[seq].n_head() + n_sync);
    } else {
        sync(seq, n_sync, rows_for(r, n_sync));
    }
    llama_synchronize(contexts.draft.get());
    r.unsynced.clear();
    r.hidden.erase(r.hidden.begin(), r.hidden.begin() + (size_t) n_sync * contexts.n_embd);
}

void pymtp_host_hidden::begin_verify(int32_t seq, llama_token first) {
    if (rows_of[seq].drafted_from != first) {
        head.discard_drafts(seq);
    }
    fetch_from_device(seq);
}

void pymtp_host_hidden::end_verify(int32_t seq, const llama_token * tokens, int32_t n) {
    rows & r = rows_of[seq];
    // if drafts started from the first of these tokens, the head has already processed it
    const int32_t known = r.drafted_from != LLAMA_TOKEN_NULL ? 1 : 0;
    const float * rows  = llama_get_embeddings_nextn(contexts.target.get());
    r.unsynced.insert(r.unsynced.end(), tokens + known, tokens + n);
    r.hidden.insert(r.hidden.end(), rows, rows + (size_t) n * contexts.n_embd);
    r.drafted_from = LLAMA_TOKEN_NULL;
    sequences[seq].end_drafts();
}

void pymtp_host_hidden::rewind(int32_t seq) {
    const int32_t n = sequences[seq].lag();
    rows_of[seq].unsynced.resize(n);
    rows_of[seq].hidden.resize((size_t) (n + 1) * contexts.n_embd);
}

void pymtp_host_hidden::draft_step(int32_t seq, llama_token token) {
    rows & r = rows_of[seq];
    pymtp_sequence & s = sequences[seq];
    // The drafts were made by a chain in one decode, which a single step cannot continue.
    const bool chained = s.n_drafted() > 0 && r.drafted_from == LLAMA_TOKEN_NULL;
    contexts.check_draft(s, token, chained ? 1 : 1 + s.n_drafted());
    pymtp_stopwatch watch(contexts.counters.draft_seconds);
    contexts.begin_host_round();
    if (chained) {
        head.discard_drafts(seq);
    }
    if (s.n_drafted() == 0) {
        first_step(seq, token);
    } else {
        contexts.batch.clear();
        contexts.batch.add(token, s.n_head() + s.n_drafted() - 1, seq, true);
        contexts.batch.set_rows(r.head_hidden.data());
        contexts.decode(contexts.draft.get());
    }
    s.begin_drafts(token, s.n_drafted() + 1);
    const float * row = llama_get_embeddings_nextn_ith(contexts.draft.get(), -1);
    r.head_hidden.assign(row, row + contexts.n_embd);
}

// Runs the first draft step of a round: the head processes its unsynced tokens without outputs, and in the same batch
// the row of `token`, from which it drafts.
void pymtp_host_hidden::first_step(int32_t seq, llama_token token) {
    rows & r = rows_of[seq];
    pymtp_sequence & s = sequences[seq];
    fetch_from_device(seq);
    r.drafted_with.assign(r.hidden.end() - contexts.n_embd, r.hidden.end());
    r.unsynced.push_back(token);
    const int32_t n      = r.unsynced.size();
    const int32_t extra  = std::max(0, n - contexts.max_head_rows);
    const float * hidden = rows_for(r, n);
    sync(seq, extra, hidden);
    contexts.batch.clear();
    for (int32_t i = extra; i < n; ++i) {
        contexts.batch.add(r.unsynced[i], s.n_head() + i - extra, seq, i + 1 == n);
    }
    contexts.batch.set_rows(hidden + (size_t) extra * contexts.n_embd);
    contexts.decode(contexts.draft.get());
    s.set_head(s.n_head() + n - extra);
    r.unsynced.clear();
    r.hidden.clear();
    r.drafted_from = token;
}

int32_t pymtp_host_hidden::draft_tokens(
        int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    pymtp_sequence & s = sequences[seq];
    for (int32_t i = 0; i < n; ++i) {
        draft_step(seq, token);
        pymtp_stopwatch watch(contexts.counters.sample_seconds);
        const pymtp_logits from = {
            llama_get_logits_ith(contexts.draft.get(), -1), nullptr, (size_t) contexts.n_vocab};
        if (s.sample(from, s.tokens().size(), &token, &confidences[i])) {
            return i;
        }
        drafts[i] = token;
    }
    return n;
}

// Undoes the first draft step: the head has yet to process the token again, with the same hidden state.
void pymtp_host_hidden::undo_first_step(int32_t seq) {
    rows & r = rows_of[seq];
    if (r.drafted_from == LLAMA_TOKEN_NULL) {
        return;
    }
    r.drafted_from = LLAMA_TOKEN_NULL;
    r.hidden       = r.drafted_with;
    sequences[seq].set_head(sequences[seq].n_past());
}
