#include "host.h"
#include "model.h"
#include "pymtp.h"

#include "llama-ext.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

struct context_deleter {
    void operator()(llama_context * ctx) const { llama_free(ctx); }
};
using context_ptr = std::unique_ptr<llama_context, context_deleter>;

class stopwatch {
public:
    explicit stopwatch(double & total) : total(total), start(std::chrono::steady_clock::now()) {}
    ~stopwatch() { total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

private:
    double & total;
    std::chrono::steady_clock::time_point start;
};

} // namespace

struct pymtp_pair {
    std::shared_ptr<llama_model> model; // first, so that it goes last

    context_ptr target;
    context_ptr draft; // null without drafts

    int32_t n_vocab = 0;
    int32_t n_embd  = 0;
    int32_t n_ctx   = 0;
    int32_t n_batch = 0;
    int32_t n_draft = 0;

    int32_t n_past      = 0; // tokens that the target holds
    int32_t n_rewind    = 0; // how many of them can be taken back: drafts just verified
    int32_t n_head      = 0; // rows that the head holds, made from the target's hidden states
    int32_t n_chain     = 0; // draft steps since n_head
    llama_token drafted_from = LLAMA_TOKEN_NULL; // the token of row n_head-1, when the target does not hold it yet

    // tokens n_head .. n_past-1, which the head has yet to take, and the hidden states n_head-1 .. n_past-1: one more,
    // for the token to come (none of both while drafted_from is set)
    std::vector<llama_token> unsynced;
    std::vector<float>       hidden;
    std::vector<float>       recycled;     // the head's own hidden state of the last draft step
    std::vector<float>       shifted;      // for PYMTP_FAULT_SHIFTED_ROWS: the last row taken, then the rows before the next
    std::vector<float>       drafted_with; // the target's hidden state that drafted_from went with

    pymtp_fault       fault = PYMTP_FAULT_NONE;
    std::atomic<bool> cancelled{false};
    pymtp_counters    counters = {};

    std::vector<llama_pos> positions;
    std::vector<int8_t>    outputs;

    int  check_room(int32_t n) const;
    const float * rows_for(int32_t n);
    int  decode(llama_context * ctx, const llama_token * tokens, const float * embd, int32_t n, int32_t pos, int32_t n_outputs);
    int  sync(const llama_token * tokens, const float * rows, int32_t n);
    int  prefill_piece(const llama_token * tokens, int32_t n, bool last);
    int  prefill(const llama_token * tokens, int32_t n);
    int  draft_step(llama_token token);
    int  verify(const llama_token * tokens, int32_t n);
    int  rewind(int32_t n_keep);
    void drop_drafts();
    void take_back_draft();
    void clear();
};

// Runs n tokens at positions from pos, the last n_outputs of them with output. On failure both contexts are emptied:
// a batch that stops half way leaves the recurrent states at an unknown position.
int pymtp_pair::decode(
        llama_context * ctx, const llama_token * tokens, const float * embd, int32_t n, int32_t pos, int32_t n_outputs) {
    positions.resize(n);
    outputs.assign(n, 0);
    for (int32_t i = 0; i < n; ++i) {
        positions[i] = pos + i;
    }
    std::fill(outputs.end() - n_outputs, outputs.end(), 1);

    llama_batch batch = {};
    batch.n_tokens = n;
    batch.token    = const_cast<llama_token *>(tokens);
    batch.embd     = const_cast<float *>(embd);
    batch.pos      = positions.data();
    batch.logits   = outputs.data();

    pymtp_errors_begin();
    const int status = llama_decode(ctx, batch);
    (ctx == target.get() ? counters.target_decodes : counters.draft_decodes)++;
    if (status == 0) {
        return PYMTP_OK;
    }
    clear();
    if (status == 2) {
        pymtp_set_error("cancelled");
        return PYMTP_CANCELLED;
    }
    pymtp_set_error("decoding " + std::to_string(n) + " tokens at position " + std::to_string(pos) + " failed");
    return PYMTP_FAILED;
}

int pymtp_pair::check_room(int32_t n) const {
    if (n_past + n <= n_ctx) {
        return PYMTP_OK;
    }
    pymtp_set_error(std::to_string(n_past) + " tokens held and " + std::to_string(n) + " more exceed n_ctx = " + std::to_string(n_ctx));
    return PYMTP_FULL;
}

// The hidden states that go with the first n of the unsynced tokens.
const float * pymtp_pair::rows_for(int32_t n) {
    if (fault != PYMTP_FAULT_SHIFTED_ROWS) {
        return hidden.data();
    }
    shifted.erase(shifted.begin(), shifted.end() - n_embd);
    shifted.insert(shifted.end(), hidden.begin(), hidden.begin() + (size_t) n * n_embd);
    return shifted.data();
}

// Rows n_head .. n_head+n-1 of the head, from the target's hidden states. Nothing is drafted from them.
int pymtp_pair::sync(const llama_token * tokens, const float * rows, int32_t n) {
    drop_drafts();
    for (int32_t done = 0; done < n;) {
        const int32_t piece = std::min(n - done, n_batch);
        if (int status = decode(draft.get(), tokens + done, rows + (size_t) done * n_embd, piece, n_head, 0)) {
            return status;
        }
        done   += piece;
        n_head += piece;
    }
    return PYMTP_OK;
}

int pymtp_pair::prefill_piece(const llama_token * tokens, int32_t n, bool last) {
    {
        stopwatch watch(counters.prefill_seconds);
        if (int status = decode(target.get(), tokens, nullptr, n, n_past, last ? 1 : 0)) {
            return status;
        }
        llama_synchronize(target.get());
    }
    n_past  += n;
    n_rewind = 0;
    if (!draft) {
        return PYMTP_OK;
    }

    stopwatch watch(counters.head_sync_seconds);
    const float * rows = llama_get_embeddings_nextn(target.get());
    // row i goes with token i+1, so all but the last are followed by a token of this piece
    unsynced.insert(unsynced.end(), tokens, tokens + n);
    hidden.insert(hidden.end(), rows, rows + (size_t) n * n_embd);
    const int32_t n_sync = unsynced.size();
    if (fault == PYMTP_FAULT_EMPTY_HEAD) {
        n_head += n_sync;
    } else {
        if (int status = sync(unsynced.data(), rows_for(n_sync), n_sync)) {
            return status;
        }
    }
    llama_synchronize(draft.get());
    unsynced.clear();
    hidden.erase(hidden.begin(), hidden.begin() + (size_t) n_sync * n_embd);
    return PYMTP_OK;
}

// Frees the head's rows that stand on its own hidden states: the true ones are to take their place.
void pymtp_pair::drop_drafts() {
    llama_memory_seq_rm(llama_get_memory(draft.get()), 0, n_head, -1);
}

// Forgets a draft that no verification followed.
void pymtp_pair::take_back_draft() {
    if (drafted_from == LLAMA_TOKEN_NULL) {
        return;
    }
    drafted_from = LLAMA_TOKEN_NULL;
    n_chain      = 0;
    n_head       = n_past;
    hidden       = drafted_with;
    drop_drafts();
}

void pymtp_pair::clear() {
    llama_memory_clear(llama_get_memory(target.get()), false);
    if (draft) {
        llama_memory_clear(llama_get_memory(draft.get()), false);
    }
    n_past = n_rewind = n_head = n_chain = 0;
    drafted_from = LLAMA_TOKEN_NULL;
    unsynced.clear();
    hidden.assign(n_embd, 0.0f); // what the first token goes with
    shifted.assign(n_embd, 0.0f);
}

int pymtp_pair::prefill(const llama_token * tokens, int32_t n) {
    if (n < 1) {
        pymtp_set_error("a prompt needs at least one token");
        return PYMTP_INVALID;
    }
    if (int status = check_room(n)) {
        return status;
    }
    take_back_draft();
    for (int32_t done = 0; done < n;) {
        const int32_t piece = std::min(n - done, n_batch);
        if (int status = prefill_piece(tokens + done, piece, done + piece == n)) {
            return status;
        }
        done += piece;
    }
    return PYMTP_OK;
}

int pymtp_pair::draft_step(llama_token token) {
    if (!draft || n_chain >= n_draft) {
        pymtp_set_error("at most " + std::to_string(n_draft) + " drafts a round");
        return PYMTP_INVALID;
    }
    int status = check_room(1 + n_chain);
    if (status) {
        return status;
    }
    stopwatch watch(counters.draft_seconds);
    if (n_chain == 0) {
        // what the head has yet to take goes along, without output, before the row that is drafted from
        drafted_with.assign(hidden.end() - n_embd, hidden.end());
        unsynced.push_back(token);
        const int32_t n     = unsynced.size();
        const int32_t extra = std::max(0, n - n_batch);
        const float * rows  = rows_for(n);
        if ((status = sync(unsynced.data(), rows, extra))) {
            return status;
        }
        status = decode(draft.get(), unsynced.data() + extra, rows + (size_t) extra * n_embd, n - extra, n_head, 1);
        if (status) {
            return status;
        }
        n_head += n - extra;
        unsynced.clear();
        hidden.clear();
        drafted_from = token;
        n_rewind     = 0; // the hidden states of earlier tokens are gone
    } else if ((status = decode(draft.get(), &token, recycled.data(), 1, n_head + n_chain - 1, 1))) {
        return status;
    }
    n_chain++;
    const float * row = llama_get_embeddings_nextn_ith(draft.get(), -1);
    recycled.assign(row, row + n_embd);
    return PYMTP_OK;
}

int pymtp_pair::verify(const llama_token * tokens, int32_t n) {
    if (n < 1 || n > 1 + n_draft) {
        pymtp_set_error("verification takes 1 to " + std::to_string(1 + n_draft) + " tokens, not " + std::to_string(n));
        return PYMTP_INVALID;
    }
    if (int status = check_room(n)) {
        return status;
    }
    stopwatch watch(counters.verify_seconds);
    if (drafted_from != tokens[0]) {
        take_back_draft();
    }
    const int32_t n_before = n_past;
    if (int status = decode(target.get(), tokens, nullptr, n, n_before, n)) {
        return status;
    }
    llama_synchronize(target.get());
    n_past  += n;
    n_rewind = n - 1;
    if (draft) {
        // the head holds the first token already when it was drafted from
        const int32_t known = n_head > n_before ? 1 : 0;
        const float * rows = llama_get_embeddings_nextn(target.get());
        unsynced.insert(unsynced.end(), tokens + known, tokens + n);
        hidden.insert(hidden.end(), rows, rows + (size_t) n * n_embd);
        drafted_from = LLAMA_TOKEN_NULL;
        n_chain      = 0;
    }
    return PYMTP_OK;
}

int pymtp_pair::rewind(int32_t n_keep) {
    stopwatch watch(counters.rewind_seconds);
    const int32_t n_drop = n_past - n_keep;
    if (n_drop < 0 || n_drop > n_rewind) {
        pymtp_set_error("cannot go back from " + std::to_string(n_past) + " tokens to " + std::to_string(n_keep) +
                ", only " + std::to_string(n_rewind) + " can be taken back");
        return PYMTP_INVALID;
    }
    if (n_drop == 0) {
        return PYMTP_OK;
    }
    if (!llama_memory_seq_rm(llama_get_memory(target.get()), 0, n_keep, -1)) {
        clear();
        pymtp_set_error("the recurrent layers hold no state at " + std::to_string(n_keep) + " tokens");
        return PYMTP_FAILED;
    }
    n_past   = n_keep;
    n_rewind = 0; // a snapshot serves once, until the next decode
    if (draft) {
        unsynced.resize(n_keep - n_head);
        hidden.resize((size_t) (n_keep - n_head + 1) * n_embd);
    }
    return PYMTP_OK;
}

// Calls into llama.cpp may throw; nothing may cross the C border.
template <typename F> static int guarded(pymtp_pair * pair, F && call) {
    try {
        return call();
    } catch (const std::exception & error) {
        pair->clear();
        pymtp_set_error(error.what());
        return PYMTP_FAILED;
    }
}

pymtp_pair * pymtp_pair_init(
        const pymtp_model * shared, llama_context_params params, int32_t n_draft, enum pymtp_tap tap) {
    pymtp_errors_begin();
    auto pair = std::make_unique<pymtp_pair>();
    pair->model = shared->shared;
    llama_model * model = pair->model.get();
    pair->n_draft = n_draft;
    pair->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    pair->n_embd  = llama_model_n_embd_out(model);

    params.n_seq_max             = 1;
    params.n_rs_seq              = n_draft;
    params.n_outputs_max         = 1 + n_draft;
    params.n_outputs_max_per_seq = 1 + n_draft;
    params.abort_callback_data   = pair.get();
    params.abort_callback        = [](void * data) {
        auto * self = static_cast<pymtp_pair *>(data);
        if (pymtp_host_wants_stop()) {
            self->cancelled = true;
        }
        return self->cancelled.load(std::memory_order_relaxed);
    };
    pair->target.reset(llama_init_from_model(model, params));
    if (!pair->target) {
        pymtp_set_error("no target context");
        return nullptr;
    }
    pair->n_ctx   = llama_n_ctx(pair->target.get());
    pair->n_batch = llama_n_batch(pair->target.get());

    if (n_draft > 0) {
        params.ctx_type              = LLAMA_CONTEXT_TYPE_MTP;
        params.n_rs_seq              = 0;
        params.n_outputs_max         = 1;
        params.n_outputs_max_per_seq = 1;
        pair->draft.reset(llama_init_from_model(model, params));
        if (!pair->draft) {
            pymtp_set_error("no draft context");
            return nullptr;
        }
        const auto nextn_tap = tap == PYMTP_TAP_PRE_NORM ? LLAMA_NEXTN_TAP_PRE_NORM : LLAMA_NEXTN_TAP_POST_NORM;
        llama_set_nextn_tap(pair->target.get(), nextn_tap);
        llama_set_nextn_tap(pair->draft.get(),  nextn_tap);
        llama_set_embeddings_nextn(pair->target.get(), true, /*masked =*/ false);
        llama_set_embeddings_nextn(pair->draft.get(),  true, /*masked =*/ true);
    }
    pair->clear();
    return pair.release();
}

void pymtp_pair_free(pymtp_pair * pair) {
    delete pair;
}

int pymtp_pair_prefill(pymtp_pair * pair, const llama_token * tokens, int32_t n, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->prefill(tokens, n);
        *logits = status ? nullptr : llama_get_logits_ith(pair->target.get(), -1);
        return status;
    });
}

int pymtp_pair_draft(pymtp_pair * pair, llama_token token, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->draft_step(token);
        *logits = status ? nullptr : llama_get_logits_ith(pair->draft.get(), -1);
        return status;
    });
}

int pymtp_pair_verify(pymtp_pair * pair, const llama_token * tokens, int32_t n, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->verify(tokens, n);
        *logits = status ? nullptr : llama_get_logits(pair->target.get());
        return status;
    });
}

int pymtp_pair_rewind(pymtp_pair * pair, int32_t n_keep) {
    return guarded(pair, [&] { return pair->rewind(n_keep); });
}

void pymtp_pair_clear(pymtp_pair * pair) {
    pair->clear();
}

int32_t pymtp_pair_n_past(const pymtp_pair * pair) {
    return pair->n_past;
}

int32_t pymtp_pair_n_head(const pymtp_pair * pair) {
    return pair->n_head;
}

llama_context * pymtp_pair_target(pymtp_pair * pair) {
    return pair->target.get();
}

void pymtp_pair_cancel(pymtp_pair * pair, bool cancelled) {
    pair->cancelled = cancelled;
}

void pymtp_pair_break(pymtp_pair * pair, enum pymtp_fault fault) {
    pair->fault = fault;
}

void pymtp_pair_counters(const pymtp_pair * pair, pymtp_counters * counters) {
    *counters = pair->counters;
}
