#include "contexts.h"

#include "api_guard.h"
#include "compare/faults.h"
#include "model.h"
#include "sample_job.h"
#include "sequence.h"

#include "llama-ext.h"
#include "pymtp_context.h"
#include "threads/team.h"

#include <algorithm>
#include <stdexcept>

static bool on_abort(void * data) {
    if (pymtp::op_times * times = pymtp::timing()) {
        times->end_share();
    }
    const bool abort = static_cast<pymtp_contexts *>(data)->cancelled.load(std::memory_order_relaxed) ||
        pymtp_abort_requested();
    if (abort) {
        pymtp_team_learn_nothing();
    }
    return abort;
}

static bool is_mrope(llama_rope_type type) {
    return type == LLAMA_ROPE_TYPE_MROPE || type == LLAMA_ROPE_TYPE_IMROPE;
}

// Refuses options for which llama.cpp would end the process, or which it would silently replace. Python has checked the
// options before, with messages in the user's terms.
static void check_options(const llama_context_params & params, const pymtp_pair_options & options) {
    // 256 is LLAMA_MAX_SEQ
    pymtp_require(options.n_seq_max >= 1 && options.n_seq_max <= 256, "n_seq_max must be from 1 to 256");
    pymtp_require(options.n_draft >= 0 && options.n_draft <= PYMTP_MAX_DRAFTS, "n_draft must be from 0 to 64");
    pymtp_require(options.n_text >= 0 && options.n_text <= PYMTP_MAX_DRAFTS, "n_text must be from 0 to 64");
    pymtp_require(options.n_outputs >= 1, "n_outputs must be at least 1");
    pymtp_require(options.n_draft_vocab >= 0, "n_draft_vocab must be a number of tokens, or 0");
    // All rows of a verification of one sequence, and one row of every sequence, must fit in one ubatch.
    const uint32_t needed = std::max(1 + std::max(options.n_draft, options.n_text), options.n_seq_max);
    pymtp_require(params.n_batch >= needed && params.n_ubatch >= needed,
            "n_batch and n_ubatch have no room for a round");
}

// Refuses so many cells that llama.cpp's data about them would not fit in this machine's memory. llama.cpp allocates
// these data even when K and V are only planned, and the operating system may kill a process that uses more memory than
// there is.
static void check_cell_metadata(const pymtp_contexts & contexts, const llama_context_params & params) {
    const size_t   total      = pymtp_system_memory();
    const uint64_t n_cells    = params.n_ctx ? params.n_ctx : llama_model_n_ctx_train(contexts.model.get());
    const uint64_t bytes      = n_cells*pymtp_cell_metadata_bytes*(contexts.options.n_draft > 0 ? 2 : 1);
    const std::string message = "n_ctx = " + std::to_string(n_cells) + " takes " + std::to_string(bytes >> 30) +
        " GiB beside K and V, and this machine has " + std::to_string(total >> 30) + " GiB";
    pymtp_require(bytes < total, message.c_str());
}

pymtp_contexts::pymtp_contexts(
        const pymtp_model & shared, llama_context_params params, const pymtp_pair_options & options) :
    model(shared.shared), options(options), n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(model.get()))),
    n_embd(llama_model_n_embd_out(model.get())), has_mrope(is_mrope(llama_model_rope_type(model.get()))),
    max_candidates(pymtp_max_candidates(*model, options.sample_on)) {
    check_options(params, options);
    check_cell_metadata(*this, params);

    const bool all_outputs = options.embeddings ||
            (options.n_draft > 0 && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    params.n_seq_max           = options.n_seq_max;
    params.n_rs_seq            = 0; // our replay (pymtp_make_replay) does this instead
    params.abort_callback      = on_abort;
    params.abort_callback_data = this;
    if (options.trace) {
        trace                    = std::make_unique<pymtp_trace>();
        params.cb_eval           = pymtp_trace::on_node;
        params.cb_eval_user_data = trace.get();
    }
    const int32_t by_head        = (1 + options.n_draft)*options.n_seq_max;
    params.n_outputs_max         = std::max({by_head, 1 + options.n_text, options.n_outputs});
    params.n_outputs_max         = all_outputs ? 0 : std::min(params.n_outputs_max, params.n_batch); // 0 means n_batch
    params.n_outputs_max_per_seq = params.n_outputs_max;
    target.reset(llama_init_from_model(model.get(), params));
    if (!target) {
        throw std::runtime_error("no target context");
    }
    pymtp_make_replay(target.get(), max_drafts());
    n_ctx     = llama_n_ctx_seq(target.get());
    n_batch   = llama_n_batch(target.get());
    n_outputs = all_outputs ? n_batch : (int32_t) params.n_outputs_max;
    if (options.n_draft > 0) {
        make_draft(params);
    }
    share_threads();
    add_adapters(shared);
}

void pymtp_contexts::make_draft(llama_context_params params) {
    const bool fused = options.prefill == PYMTP_PREFILL_FUSED;
    params.ctx_type              = LLAMA_CONTEXT_TYPE_MTP;
    params.n_outputs_max         = options.n_seq_max;
    params.n_outputs_max_per_seq = 1;
    if (fused) {
        // The draft context gets the rows of a round, or the rows that the head lags behind, but never a whole prompt.
        // A low limit keeps its compute buffers small.
        const int32_t max_rows = std::max({options.n_draft + 2, options.n_draft*options.n_seq_max, PYMTP_MAX_HEAD_LAG});
        params.n_batch  = std::min<uint32_t>(params.n_batch,  max_rows);
        params.n_ubatch = std::min<uint32_t>(params.n_ubatch, params.n_batch);
    }
    draft.reset(llama_init_from_model(model.get(), params));
    if (!draft) {
        throw std::runtime_error("no draft context");
    }
    max_head_rows = fused ? llama_n_ubatch(draft.get()) : llama_n_batch(draft.get());
    pymtp_set_tap(target.get(), options.tap == PYMTP_TAP_PRE_NORM);
    pymtp_set_tap(draft.get(),  options.tap == PYMTP_TAP_PRE_NORM);
    if (fused) {
        pymtp_set_fused_sync(target.get(), draft.get(), false);
    }
}

void pymtp_contexts::share_threads() {
    ggml_threadpool_params params = ggml_threadpool_params_default(llama_n_threads(target.get()));
    params.poll = options.all_threads ? PYMTP_TEAM_ALL : 0;
    threads.reset(ggml_threadpool_new(&params));
    for (llama_context * ctx : {target.get(), draft.get()}) {
        if (ctx) {
            llama_attach_threadpool(ctx, threads.get(), threads.get());
        }
    }
}

// Both contexts need all adapters: the target's graph also fills the head's cache, and the draft context's graph also
// embeds tokens.
void pymtp_contexts::add_adapters(const pymtp_model & shared) {
    for (llama_context * ctx : {target.get(), draft.get()}) {
        if (ctx && !shared.adapters.empty()) {
            std::vector<llama_adapter_lora *> adapters = shared.adapters;
            std::vector<float> scales = shared.adapter_scales;
            llama_set_adapters_lora(ctx, adapters.data(), adapters.size(), scales.data());
        }
    }
}

bool pymtp_contexts::is_fused() const {
    return draft && options.prefill == PYMTP_PREFILL_FUSED && fault != PYMTP_FAULT_SHIFTED_ROWS;
}

int32_t pymtp_contexts::max_verify_rows() const {
    return std::min(n_outputs, (int32_t) llama_n_ubatch(target.get()));
}

// ── checks ──

void pymtp_contexts::check_seq(int32_t seq) const {
    if (seq < 0 || seq >= options.n_seq_max) {
        throw pymtp_failure(PYMTP_INVALID, "there is no sequence " + std::to_string(seq) + ", only 0 to " +
                std::to_string(options.n_seq_max - 1));
    }
}

void pymtp_contexts::check_seqs(int32_t n_seqs, const int32_t * seqs) const {
    if (n_seqs < 1) {
        throw pymtp_failure(PYMTP_INVALID, "a sequence is needed");
    }
    for (int32_t k = 0; k < n_seqs; ++k) {
        check_seq(seqs[k]);
        if (k > 0 && seqs[k] <= seqs[k - 1]) {
            throw pymtp_failure(PYMTP_INVALID, "sequences must be given once each, in rising order");
        }
    }
}

void pymtp_contexts::check_tokens(const llama_token * tokens, int32_t n) const {
    const auto * invalid = std::find_if(tokens, tokens + n,
            [&](llama_token token) { return token < 0 || token >= n_vocab; });
    if (invalid != tokens + n) {
        throw pymtp_failure(PYMTP_INVALID, "there is no token " + std::to_string(*invalid) + " in a vocabulary of " +
                std::to_string(n_vocab));
    }
}

void pymtp_contexts::check_prompt(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const {
    images.check(s.images(), s.tokens().data(), s.n_past(), tokens, n, n_vocab);
}

void pymtp_contexts::check_room(const pymtp_sequence & s, int32_t n) const {
    if (n > n_ctx - s.n_past()) {
        throw pymtp_failure(PYMTP_FULL, std::to_string(s.n_past()) + " tokens held and " + std::to_string(n) +
                " more exceed n_ctx = " + std::to_string(n_ctx));
    }
}

void pymtp_contexts::check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const {
    if (!draft || n < 1 || n > options.n_draft) {
        throw pymtp_failure(PYMTP_INVALID, "at most " + std::to_string(options.n_draft) + " drafts a round");
    }
    check_tokens(&token, 1);
    check_room(s, n);
}

// ── images ──

void pymtp_contexts::add_image(llama_token token, int32_t nx, int32_t ny) {
    if (!has_mrope) {
        throw pymtp_failure(PYMTP_INVALID, "this model has no positions of images");
    }
    if (draft && !is_fused()) {
        throw pymtp_failure(PYMTP_INVALID, "images are for prefill=\"fused\" only");
    }
    images.add(token, nx, ny);
}

void pymtp_contexts::watch_images(const pymtp_images_of & images_of) {
    if (has_mrope) {
        for (llama_context * ctx : {target.get(), draft.get()}) {
            if (ctx) {
                pymtp_set_images(ctx, images_of);
            }
        }
    }
}

// ── decodes ──

void pymtp_contexts::reserve() {
    pymtp_reserve(target.get());
    if (draft) {
        pymtp_reserve(draft.get());
    }
}

void pymtp_contexts::begin_prefill() {
    llama_set_embeddings(target.get(), embeds_prompts());
    if (!draft) {
        return;
    }
    pymtp_set_fused_sync(target.get(), is_fused() ? draft.get() : nullptr, /*deferred =*/ false);
    llama_set_embeddings_nextn(target.get(), !is_fused() && options.prefill != PYMTP_PREFILL_ALL_OUTPUTS,
            /*masked =*/ false);
    // Masked, because otherwise llama.cpp would copy every hidden state of the head to the host.
    const bool fused = options.prefill == PYMTP_PREFILL_FUSED;
    llama_set_embeddings_nextn(draft.get(), fused, /*masked =*/ fused);
}

void pymtp_contexts::begin_host_round() {
    llama_set_embeddings(target.get(), false);
    if (!draft) {
        return;
    }
    pymtp_set_fused_sync(target.get(), nullptr, /*deferred =*/ false);
    llama_set_embeddings_nextn(target.get(), true, /*masked =*/ false);
    llama_set_embeddings_nextn(draft.get(), true, /*masked =*/ true);
}

void pymtp_contexts::decode(llama_context * ctx, uint32_t slot) {
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
    if (status == 2) {
        throw pymtp_failure(PYMTP_CANCELLED, "cancelled");
    }
    if (status != 0) {
        throw pymtp_failure(PYMTP_FAILED, "decoding " + batch.describe() + " failed");
    }
}

// While an object of this class lives, the graphs of a context end with sampling. The destructor turns it off, also
// when llama.cpp throws an exception.
class pymtp_graph_sample_scope {
public:
    pymtp_graph_sample_scope(llama_context * ctx, const pymtp_graph_sample & params) : ctx(ctx) {
        pymtp_set_sample(ctx, params);
    }
    ~pymtp_graph_sample_scope() { pymtp_set_sample(ctx, {}); }

private:
    llama_context * ctx;
};

void pymtp_contexts::decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples) {
    const pymtp_graph_sample params = samples.graph_params(max_candidates);
    const pymtp_graph_sample_scope graph(ctx, params);
    pymtp_graph_slots & slots = ctx == target.get() ? target_slots : draft_slots;
    try {
        decode(ctx, slots.slot_for({(int32_t) samples.jobs.size(), samples.n_rows}));
    } catch (const pymtp_failure &) {
        llama_synchronize(ctx); // the graph may still be calling back
        throw;
    }
    if (params.kind == PYMTP_SAMPLE_ARGMAX) {
        samples.read_argmax(ctx);
    } else {
        llama_synchronize(ctx);
        counters.sample_seconds += samples.seconds(llama_n_threads(ctx));
    }
}
