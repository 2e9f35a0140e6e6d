#include "pair.h"

#include "api_guard.h"
#include "compare/faults.h"
#include "sample_job.h"

#include "pymtp_context.h"
#include "threads/team.h"

#include <algorithm>

static bool on_abort(void * data) {
    auto * pair = static_cast<pymtp_pair *>(data);
    if (pymtp::op_times * times = pymtp::timing()) {
        times->end_share();
    }
    const bool abort = pair->cancelled.load(std::memory_order_relaxed) || pymtp_abort_requested();
    if (abort) {
        pymtp_team_learn_nothing();
    }
    return abort;
}

// Refuses options for which llama.cpp would end the process, or which it would silently replace. Python has checked the
// options before, with messages in the user's terms.
static void check_options(const llama_context_params & params, const pymtp_pair_options & options) {
    // 256 is LLAMA_MAX_SEQ
    pymtp_require(options.n_seq_max >= 1 && options.n_seq_max <= 256, "n_seq_max must be from 1 to 256");
    pymtp_require(options.n_draft >= 0 && options.n_draft <= PYMTP_MAX_DRAFTS, "n_draft must be from 0 to 64");
    pymtp_require(options.n_outputs >= 1, "n_outputs must be at least 1");
    pymtp_require(options.n_draft_vocab >= 0, "n_draft_vocab must be a number of tokens, or 0");
    // All rows of a verification of one sequence, and one row of every sequence, must fit in one ubatch.
    const uint32_t needed = std::max(1 + options.n_draft, options.n_seq_max);
    pymtp_require(params.n_batch >= needed && params.n_ubatch >= needed,
            "n_batch and n_ubatch have no room for a round");
}

// Refuses so many cells that llama.cpp's data about them would not fit in this machine's memory. llama.cpp allocates
// these data even when K and V are only planned, and the operating system may kill a process that uses more memory than
// there is.
static void check_cell_metadata(const pymtp_pair & pair, const llama_context_params & params) {
    const size_t   total      = pymtp_system_memory();
    const uint64_t n_cells    = params.n_ctx ? params.n_ctx : llama_model_n_ctx_train(pair.model.get());
    const uint64_t bytes      = n_cells*pymtp_cell_metadata_bytes*(pair.options.n_draft > 0 ? 2 : 1);
    const std::string message = "n_ctx = " + std::to_string(n_cells) + " takes " + std::to_string(bytes >> 30) +
        " GiB beside K and V, and this machine has " + std::to_string(total >> 30) + " GiB";
    pymtp_require(bytes < total, message.c_str());
}

std::unique_ptr<pymtp_pair> pymtp_make_pair(const pymtp_model * shared, llama_context_params params,
        const pymtp_pair_options & options) {
    check_options(params, options);
    auto pair = std::make_unique<pymtp_pair>();
    pair->model   = shared->shared;
    pair->options = options;
    check_cell_metadata(*pair, params);
    llama_model * model = pair->model.get();
    pair->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    pair->n_embd  = llama_model_n_embd_out(model);
    pair->sequences.resize(options.n_seq_max);
    pair->max_candidates = pymtp_max_candidates(*model, options.sample_on);

    const bool fused = options.prefill == PYMTP_PREFILL_FUSED;
    const bool all_outputs = options.embeddings ||
            (options.n_draft > 0 && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    params.n_seq_max           = options.n_seq_max;
    params.n_rs_seq            = 0; // our replay (pymtp_make_replay) does this instead
    params.abort_callback      = on_abort;
    params.abort_callback_data = pair.get();
    if (options.trace) {
        pair->trace              = std::make_unique<pymtp_trace>();
        params.cb_eval           = pymtp_trace::on_node;
        params.cb_eval_user_data = pair->trace.get();
    }
    params.n_outputs_max         = std::max((1 + options.n_draft)*options.n_seq_max, options.n_outputs);
    params.n_outputs_max         = all_outputs ? 0 : std::min(params.n_outputs_max, params.n_batch); // 0 means n_batch
    params.n_outputs_max_per_seq = params.n_outputs_max;
    pair->target.reset(llama_init_from_model(model, params));
    if (!pair->target) {
        pymtp_set_error("no target context");
        return nullptr;
    }
    pymtp_make_replay(pair->target.get(), options.n_draft);
    pair->n_ctx     = llama_n_ctx_seq(pair->target.get());
    pair->n_batch   = llama_n_batch(pair->target.get());
    pair->n_outputs = all_outputs ? pair->n_batch : (int32_t) params.n_outputs_max;

    if (options.n_draft > 0) {
        params.ctx_type              = LLAMA_CONTEXT_TYPE_MTP;
        params.n_outputs_max         = options.n_seq_max;
        params.n_outputs_max_per_seq = 1;
        if (fused) {
            // The draft context gets the rows of a round, or the rows that the head lags behind, but never a whole
            // prompt. A low limit keeps its compute buffers small.
            const int32_t max_rows = std::max({options.n_draft + 2, options.n_draft*options.n_seq_max,
                    PYMTP_MAX_HEAD_LAG});
            params.n_batch  = std::min<uint32_t>(params.n_batch,  max_rows);
            params.n_ubatch = std::min<uint32_t>(params.n_ubatch, params.n_batch);
        }
        pair->draft.reset(llama_init_from_model(model, params));
        if (!pair->draft) {
            pymtp_set_error("no draft context");
            return nullptr;
        }
        pair->host_hidden   = std::make_unique<pymtp_host_hidden>(*pair);
        pair->max_head_rows = fused ? llama_n_ubatch(pair->draft.get()) : llama_n_batch(pair->draft.get());
        pymtp_set_tap(pair->target.get(), options.tap == PYMTP_TAP_PRE_NORM);
        pymtp_set_tap(pair->draft.get(),  options.tap == PYMTP_TAP_PRE_NORM);
        if (fused) {
            pymtp_set_fused_sync(pair->target.get(), pair->draft.get(), false);
            pair->make_draft_vocab(*shared);
        }
    }
    pair->make_threads();
    if (!shared->adapters.empty()) {
        // Both contexts need all adapters: the target's graph also fills the head's cache, and the draft context's
        // graph also embeds tokens.
        for (llama_context * ctx : {pair->target.get(), pair->draft.get()}) {
            if (ctx) {
                std::vector<llama_adapter_lora *> adapters = shared->adapters;
                std::vector<float> scales = shared->adapter_scales;
                llama_set_adapters_lora(ctx, adapters.data(), adapters.size(), scales.data());
            }
        }
    }
    pair->reserve();
    return pair;
}

void pymtp_pair::make_threads() {
    ggml_threadpool_params params = ggml_threadpool_params_default(llama_n_threads(target.get()));
    params.poll = options.all_threads ? PYMTP_TEAM_ALL : 0;
    threads = decltype(threads)(ggml_threadpool_new(&params));
    for (llama_context * ctx : {target.get(), draft.get()}) {
        if (ctx) {
            llama_attach_threadpool(ctx, threads.get(), threads.get());
        }
    }
}

bool pymtp_pair::check_seq(int32_t seq) const {
    if (seq >= 0 && seq < options.n_seq_max) {
        return true;
    }
    pymtp_set_error("there is no sequence " + std::to_string(seq) + ", only 0 to " +
            std::to_string(options.n_seq_max - 1));
    return false;
}

bool pymtp_pair::check_seqs(int32_t n_seqs, const int32_t * seqs) const {
    if (n_seqs < 1) {
        pymtp_set_error("a sequence is needed");
        return false;
    }
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (!check_seq(seqs[k])) {
            return false;
        }
        if (k > 0 && seqs[k] <= seqs[k - 1]) {
            pymtp_set_error("sequences must be given once each, in rising order");
            return false;
        }
    }
    return true;
}

bool pymtp_pair::check_tokens(const llama_token * tokens, int32_t n) const {
    const auto * invalid = std::find_if(tokens, tokens + n,
            [&](llama_token token) { return token < 0 || token >= n_vocab; });
    if (invalid == tokens + n) {
        return true;
    }
    pymtp_set_error("there is no token " + std::to_string(*invalid) + " in a vocabulary of " + std::to_string(n_vocab));
    return false;
}

int pymtp_pair::check_room(const pymtp_sequence & s, int32_t n) const {
    if (n <= n_ctx - s.n_past) {
        return PYMTP_OK;
    }
    pymtp_set_error(std::to_string(s.n_past) + " tokens held and " + std::to_string(n) + " more exceed n_ctx = " +
            std::to_string(n_ctx));
    return PYMTP_FULL;
}

// Decodes the batch, and reuses the graph that is stored under the index `slot`. After a failure the state of the
// batch's sequences is unknown: the caller must return an error, which clears these sequences.
int pymtp_pair::decode(llama_context * ctx, uint32_t slot) {
    const bool is_target = ctx == target.get();
    if (trace) {
        trace->who = is_target ? "target" : "draft";
    }
    if (draft && is_target) {
        // On a GPU each context has its own stream. Waits for the draft context, because the target's graph writes
        // cells of the head that the draft context's graph may still be reading.
        llama_synchronize(draft.get());
    }
    pymtp_fault_before_decode(*this);
    const pymtp::timed_ops timed(op_times.get());
    const int status = pymtp_decode(ctx, batch.view(), slot);
    (is_target ? counters.target_decodes : counters.draft_decodes)++;
    pymtp_fault_in_decode(*this);
    if (status == 0) {
        return PYMTP_OK;
    }
    if (status == 2) {
        pymtp_set_error("cancelled");
        return PYMTP_CANCELLED;
    }
    pymtp_set_error("decoding " + batch.describe() + " failed");
    return PYMTP_FAILED;
}

void pymtp_pair::clear(int32_t seq) {
    pymtp_fault_in_clear(*this);
    llama_memory_seq_rm(llama_get_memory(target.get()), seq, -1, -1);
    if (draft) {
        llama_memory_seq_rm(llama_get_memory(draft.get()), seq, -1, -1);
        zero_head_cells(seq);
        host_hidden->clear(seq);
    }
    auto sampler = std::move(sequences[seq].sampler);
    sequences[seq] = pymtp_sequence();
    sequences[seq].sampler = std::move(sampler);
}

void pymtp_pair::clear_after_failure(const int32_t * seqs, int32_t n) noexcept {
    try {
        for (int32_t k = 0; k < n; ++k) {
            // the call may have failed before it checked that the sequence exists
            if (seqs[k] >= 0 && seqs[k] < options.n_seq_max) {
                clear(seqs[k]);
            }
        }
    } catch (...) {
        mark_broken(pymtp_last_error()); // the error message is still that of the first error
    }
}

void pymtp_pair::mark_broken(const char * why) noexcept {
    try {
        broken = why;
    } catch (...) {
    }
    if (broken.empty()) {
        broken = "no memory"; // this string is so short that it needs no allocation
    }
    report_broken();
}

void pymtp_pair::report_broken() const noexcept {
    try {
        pymtp_set_error("this context failed and cannot go on: make a new one (" + broken + ")");
    } catch (...) {
        pymtp_store_error("this context failed and cannot go on: make a new one");
    }
}
