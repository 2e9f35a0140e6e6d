// The C interface of a pair.
#include "pair.h"

#include "sample_job.h"
#include "host.h"

#include "llama-ext.h"

#include <algorithm>
#include <cstring>
#include <exception>

void pymtp_batch::clear() {
    tokens.clear();
    positions.clear();
    n_seq_ids.clear();
    seqs.clear();
    outputs.clear();
    embd = nullptr;
}

void pymtp_batch::add(llama_token token, int32_t pos, llama_seq_id seq, bool output) {
    tokens.push_back(token);
    positions.push_back(pos);
    n_seq_ids.push_back(1);
    seqs.push_back(seq);
    outputs.push_back(output);
}

std::string pymtp_batch::describe() const {
    return std::to_string(tokens.size()) + " tokens at position " + std::to_string(positions.front());
}

llama_batch pymtp_batch::view() {
    seq_ids.resize(seqs.size());
    for (size_t i = 0; i < seqs.size(); ++i) {
        seq_ids[i] = &seqs[i];
    }
    llama_batch batch = {};
    batch.n_tokens = size();
    batch.token    = tokens.data();
    batch.embd     = const_cast<float *>(embd);
    batch.pos      = positions.data();
    batch.n_seq_id = n_seq_ids.data();
    batch.seq_id   = seq_ids.data();
    batch.logits   = outputs.data();
    return batch;
}

// Runs the batch, with the graph of a slot. On failure both contexts are emptied: a batch that stops half way leaves the recurrent states at an
// unknown position.
int pymtp_pair::decode(llama_context * ctx, uint32_t slot) {
    pymtp_errors_begin();
    trace_target = ctx == target.get() ? "target" : "draft";
    llama_set_graph_slot(ctx, slot);
    if (draft && ctx == target.get()) {
        // on a GPU each context computes on a stream of its own: what the head still reads, the target's graph is about to write
        llama_synchronize(draft.get());
    }
    const int status = llama_decode(ctx, batch.view());
    (ctx == target.get() ? counters.target_decodes : counters.draft_decodes)++;
    if (status == 0) {
        return PYMTP_OK;
    }
    clear();
    if (status == 2) {
        pymtp_set_error("cancelled");
        return PYMTP_CANCELLED;
    }
    pymtp_set_error("decoding " + batch.describe() + " failed");
    return PYMTP_FAILED;
}

bool pymtp_pair::check_seq(int32_t seq) const {
    if (seq >= 0 && seq < options.n_seq_max) {
        return true;
    }
    pymtp_set_error("there is no sequence " + std::to_string(seq) + ", only 0 to " + std::to_string(options.n_seq_max - 1));
    return false;
}

int pymtp_pair::check_room(const pymtp_sequence & s, int32_t n) const {
    if (n <= n_ctx - s.n_past) {
        return PYMTP_OK;
    }
    pymtp_set_error(std::to_string(s.n_past) + " tokens held and " + std::to_string(n) + " more exceed n_ctx = " + std::to_string(n_ctx));
    return PYMTP_FULL;
}

void pymtp_pair::clear(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(target.get()), seq, -1, -1);
    if (draft) {
        llama_memory_seq_rm(llama_get_memory(draft.get()), seq, -1, -1);
    }
    auto sampler = std::move(sequences[seq].sampler);
    sequences[seq] = pymtp_sequence();
    sequences[seq].sampler = std::move(sampler);
    sequences[seq].hidden.assign(n_embd, 0.0f); // what the first token goes with
    sequences[seq].shifted.assign(n_embd, 0.0f);
}

void pymtp_pair::clear() {
    for (int32_t seq = 0; seq < options.n_seq_max; ++seq) {
        clear(seq);
    }
}

bool pymtp_pair::check_sampler(int32_t seq) const {
    if (!check_seq(seq)) {
        return false;
    }
    if (!sequences[seq].sampler) {
        pymtp_set_error("sequence " + std::to_string(seq) + " was not told how to sample tokens");
        return false;
    }
    return true;
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

// One line a node: who computes, its name, the operation, whether its data begin on a cache line, the elements of its
// largest source, its shape.
static bool on_node(ggml_tensor * node, bool ask, void * data) {
    auto * pair = static_cast<pymtp_pair *>(data);
    if (ask) {
        pair->trace += pair->trace_target + " " + node->name + " " + ggml_op_name(node->op);
        pair->trace += (uintptr_t) node->data % 64 == 0 ? " 1" : " 0";
        int64_t most = 0;
        for (const ggml_tensor * source : node->src) {
            most = std::max(most, source ? ggml_nelements(source) : 0);
        }
        pair->trace += " " + std::to_string(most);
        for (int64_t n : node->ne) {
            pair->trace += " " + std::to_string(n);
        }
        pair->trace += "\n";
    }
    return !ask;
}

static bool on_abort(void * data) {
    auto * pair = static_cast<pymtp_pair *>(data);
    return pair->cancelled.load(std::memory_order_relaxed) || pymtp_host_wants_stop();
}

std::unique_ptr<pymtp_pair> pymtp_make_pair(const pymtp_model * shared, llama_context_params params, const pymtp_pair_options & options) {
    auto pair = std::make_unique<pymtp_pair>();
    pair->model   = shared->shared;
    pair->options = options;
    llama_model * model = pair->model.get();
    pair->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    pair->n_embd  = llama_model_n_embd_out(model);
    pair->sequences.resize(options.n_seq_max);
    pair->most_candidates = pymtp_most_candidates(*model, options.draws);

    const bool fused = options.prefill == PYMTP_PREFILL_FUSED;
    const bool every = options.embeddings || (options.n_draft > 0 && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    params.n_seq_max           = options.n_seq_max;
    params.n_rs_seq            = options.n_draft;
    params.abort_callback      = on_abort;
    params.abort_callback_data = pair.get();
    if (options.trace) {
        params.cb_eval           = on_node;
        params.cb_eval_user_data = pair.get();
    }
    params.n_outputs_max         = std::max({1 + options.n_draft, options.n_seq_max, options.n_outputs});
    params.n_outputs_max         = every ? 0 : std::min(params.n_outputs_max, params.n_batch); // 0: n_batch
    params.n_outputs_max_per_seq = params.n_outputs_max;
    pair->target.reset(llama_init_from_model(model, params));
    if (!pair->target) {
        pymtp_set_error("no target context");
        return nullptr;
    }
    pair->n_ctx     = llama_n_ctx_seq(pair->target.get());
    pair->n_batch   = llama_n_batch(pair->target.get());
    pair->n_outputs = every ? pair->n_batch : (int32_t) params.n_outputs_max;

    if (options.n_draft > 0) {
        params.ctx_type              = LLAMA_CONTEXT_TYPE_MTP;
        params.n_rs_seq              = 0;
        params.n_outputs_max         = options.n_seq_max;
        params.n_outputs_max_per_seq = 1;
        if (fused) {
            // it takes the rows of a round, or those it was left behind by, never a prompt: no compute buffer for more
            const int32_t most = std::max({options.n_draft + 2, options.n_seq_max, PYMTP_MOST_KEPT});
            params.n_batch  = std::min<uint32_t>(params.n_batch,  most);
            params.n_ubatch = std::min<uint32_t>(params.n_ubatch, params.n_batch);
        }
        pair->draft.reset(llama_init_from_model(model, params));
        if (!pair->draft) {
            pymtp_set_error("no draft context");
            return nullptr;
        }
        pair->n_head_rows = fused ? llama_n_ubatch(pair->draft.get()) : llama_n_batch(pair->draft.get());
        const auto tap = options.tap == PYMTP_TAP_PRE_NORM ? LLAMA_NEXTN_TAP_PRE_NORM : LLAMA_NEXTN_TAP_POST_NORM;
        llama_set_nextn_tap(pair->target.get(), tap);
        llama_set_nextn_tap(pair->draft.get(),  tap);
        if (fused) {
            llama_set_nextn_sync(pair->target.get(), pair->draft.get(), false);
        }
    }
    pair->reserve();
    pair->clear();
    return pair;
}

pymtp_pair * pymtp_pair_init(
        const pymtp_model * shared, llama_context_params params, const pymtp_pair_options * options) {
    pymtp_errors_begin();
    try {
        return pymtp_make_pair(shared, params, *options).release();
    } catch (const std::exception & error) {
        pymtp_set_error(error.what());
        return nullptr;
    }
}

void pymtp_pair_free(pymtp_pair * pair) {
    delete pair;
}

int pymtp_pair_prefill(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        bool all, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->prefill(n_seqs, seqs, tokens, lengths, all);
        *logits = status ? nullptr : pair->logits.data();
        return status;
    });
}

const float * pymtp_pair_embeddings(const pymtp_pair * pair) {
    return pair->embeddings.data();
}

int pymtp_pair_draft(pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->check_seq(seq) ? pair->draft_step(seq, token) : PYMTP_INVALID;
        *logits = status ? nullptr : llama_get_logits_ith(pair->draft.get(), -1);
        return status;
    });
}

int pymtp_pair_verify(pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits) {
    return guarded(pair, [&] {
        const int status = pair->check_seq(seq) ? pair->verify(seq, tokens, n) : PYMTP_INVALID;
        *logits = status ? nullptr : llama_get_logits(pair->target.get());
        return status;
    });
}

int pymtp_pair_sampling(pymtp_pair * pair, int32_t seq, const pymtp_sampling * sampling) {
    if (!pair->check_seq(seq)) {
        return PYMTP_INVALID;
    }
    pair->sequences[seq].sampler = std::make_shared<pymtp_sampler>(*sampling, pair->n_vocab);
    return PYMTP_OK;
}

int pymtp_pair_first_token(pymtp_pair * pair, int32_t seq, llama_token * token) {
    if (!pair->check_sampler(seq)) {
        return PYMTP_INVALID;
    }
    return guarded(pair, [&] { return pair->first_token(seq, token); });
}

int pymtp_pair_draft_tokens(
        pymtp_pair * pair, int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    if (!pair->check_sampler(seq)) {
        return PYMTP_INVALID;
    }
    return guarded(pair, [&] { return pair->draft_tokens(seq, token, n, drafts, confidences); });
}

int pymtp_pair_verify_tokens(
        pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, llama_token * sampled, int32_t * n_sampled) {
    if (!pair->check_sampler(seq)) {
        return PYMTP_INVALID;
    }
    return guarded(pair, [&] { return pair->verify_tokens(seq, tokens, n, sampled, n_sampled); });
}

int32_t pymtp_pair_logprobs(const pymtp_pair * pair, const pymtp_logprob ** logprobs) {
    *logprobs = pair->logprobs.data();
    return pair->logprobs.size();
}

llama_token pymtp_sample(
        const pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence) {
    const pymtp_logits from = {logits, nullptr, (size_t) n_vocab};
    const auto sampled = pymtp_sampler(*sampling, n_vocab).sample(from, position, prefix, n, true);
    *confidence = sampled.confidence;
    return sampled.allowed ? sampled.token : LLAMA_TOKEN_NULL;
}

int pymtp_pair_rewind(pymtp_pair * pair, int32_t seq, int32_t n_keep) {
    return guarded(pair, [&] { return pair->check_seq(seq) ? pair->rewind(seq, n_keep) : PYMTP_INVALID; });
}

int pymtp_pair_clear(pymtp_pair * pair, int32_t seq) {
    if (!pair->check_seq(seq)) {
        return PYMTP_INVALID;
    }
    pair->clear(seq);
    return PYMTP_OK;
}

int32_t pymtp_pair_n_past(const pymtp_pair * pair, int32_t seq) {
    return pair->check_seq(seq) ? pair->sequences[seq].n_past : PYMTP_INVALID;
}

const llama_token * pymtp_pair_tokens(const pymtp_pair * pair, int32_t seq) {
    return pair->check_seq(seq) ? pair->sequences[seq].tokens.data() : nullptr;
}

int32_t pymtp_pair_n_head(const pymtp_pair * pair, int32_t seq) {
    return pair->check_seq(seq) ? pair->sequences[seq].n_head : PYMTP_INVALID;
}

int32_t pymtp_pair_n_ctx(const pymtp_pair * pair) {
    return pair->n_ctx;
}

void pymtp_pair_cancel(pymtp_pair * pair, bool cancelled) {
    pair->cancelled = cancelled;
}

void pymtp_pair_break(pymtp_pair * pair, enum pymtp_fault fault) {
    pair->fault = fault;
}

void pymtp_pair_counters(const pymtp_pair * pair, pymtp_counters * counters) {
    *counters = pair->counters;
    counters->hidden_bytes = counters->logits_bytes = counters->embeddings_bytes = counters->draw_bytes = counters->output_buffer_bytes = 0;
    counters->graphs_reused = 0;
    for (const llama_context * ctx : {pair->target.get(), pair->draft.get()}) {
        if (ctx) {
            counters->graphs_reused += llama_perf_context(ctx).n_reused;
            const llama_output_bytes bytes = llama_get_output_bytes(ctx);
            counters->hidden_bytes     += bytes.nextn;
            counters->logits_bytes     += bytes.logits;
            counters->embeddings_bytes += bytes.embeddings;
            counters->draw_bytes       += bytes.draws;
            counters->output_buffer_bytes += bytes.buffer;
        }
    }
}

const char * pymtp_pair_trace(pymtp_pair * pair) {
    pair->trace_text.swap(pair->trace);
    pair->trace.clear();
    return pair->trace_text.c_str();
}

size_t pymtp_pair_head_state(pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size) {
    if (!pair->draft || !pair->check_seq(seq)) {
        return 0;
    }
    size_t n = 0;
    guarded(pair, [&] {
        if (pair->sequences[seq].on_device) {
            if (int status = pair->take_kept(seq)) {
                return status;
            }
        }
        llama_synchronize(pair->target.get());
        llama_synchronize(pair->draft.get());
        n = llama_state_seq_get_size(pair->draft.get(), seq);
        if (size >= n) {
            n = llama_state_seq_get_data(pair->draft.get(), data, size, seq);
        }
        return (int) PYMTP_OK;
    });
    return n;
}
