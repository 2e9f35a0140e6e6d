#include "sample_job.h"

#include "host.h"
#include "pair.h"

#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <exception>

size_t pymtp_most_candidates(const llama_model & model, pymtp_draws draws) {
    if (draws != PYMTP_DRAWS_AUTO) {
        return draws == PYMTP_DRAWS_DEVICE ? PYMTP_MOST_CANDIDATES : 0;
    }
    const ggml_backend_buffer_t buffer = model.output ? model.output->buffer : nullptr;
    if (!buffer || ggml_backend_buffer_is_host(buffer)) {
        return 0;
    }
    // the CPU has buffers for weights in layouts of its own, which are not the host's to read
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
    if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return 0;
    }
    const ggml_context_ptr ctx(ggml_init({8 * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true}));
    const int64_t n_vocab = model.output->ne[1];
    ggml_tensor * logits = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_vocab, 1);
    ggml_tensor * argmax = ggml_argmax(ctx.get(), logits);
    ggml_tensor * probs  = ggml_soft_max(ctx.get(), logits);
    ggml_tensor * prob   = ggml_get_rows(ctx.get(), ggml_reshape_2d(ctx.get(), probs, 1, n_vocab), argmax);
    ggml_tensor * top_k  = ggml_top_k(ctx.get(), logits, std::min<int64_t>(PYMTP_MOST_CANDIDATES, n_vocab));
    for (const ggml_tensor * op : {argmax, probs, prob}) {
        if (!ggml_backend_dev_supports_op(device, op)) {
            return 0;
        }
    }
    return ggml_backend_dev_supports_op(device, top_k) ? PYMTP_MOST_CANDIDATES : 1;
}

static llama_token on_sample(void * job, const float * logits, const llama_token * ids, int32_t n) {
    return static_cast<pymtp_sample_job *>(job)->sample({logits, ids, (size_t) n});
}

pymtp_graph_sample pymtp_sample_job::params() {
    pymtp_graph_sample params;
    const size_t enough = pair->sequences[seq].sampler->enough(confidences != nullptr);
    if (enough == 0 || enough > pair->most_candidates) {
        params.kind = PYMTP_SAMPLE_ROW;
    } else if (enough == 1) {
        params.kind  = PYMTP_SAMPLE_ARGMAX;
        params.probs = confidences != nullptr;
    } else {
        params.kind         = PYMTP_SAMPLE_CANDIDATES;
        params.n_candidates = enough;
    }
    params.callback  = on_sample;
    params.user_data = this;
    return params;
}

llama_token pymtp_sample_job::sample(const pymtp_logits & from) {
    if (ended) {
        return 0;
    }
    llama_token token = LLAMA_TOKEN_NULL;
    int why = PYMTP_FAILED;
    try {
        why = pair->sample(seq, from, n_prefix, &token, confidences ? &confidences[n_sampled] : nullptr);
    } catch (const std::exception &) {
    }
    return why == PYMTP_OK ? add(token) : fail(why);
}

void pymtp_sample_job::read(llama_context * ctx) {
    std::vector<llama_token> tokens(n_rows);
    std::vector<float>       values(n_rows);
    pymtp_get_sampled(ctx, tokens.data(), values.data(), n_rows);
    for (int32_t i = 0; i < n_rows && !ended; ++i) {
        if (!std::isfinite(values[i])) {
            fail(PYMTP_FAILED);
            return;
        }
        if (confidences) {
            confidences[i] = values[i];
        }
        add(tokens[i]);
    }
}

llama_token pymtp_sample_job::add(llama_token token) {
    sampled[n_sampled++] = token;
    ++n_prefix;
    if (next) {
        ended = n_sampled == n_rows || token != next[n_sampled];
    } else {
        pair->sequences[seq].tokens.push_back(token);
    }
    return token;
}

llama_token pymtp_sample_job::fail(int why) {
    status = why;
    ended  = true;
    return 0;
}

// While it lives, graphs end with draws for a job; llama.cpp may throw.
class pymtp_sampling_graph {
public:
    pymtp_sampling_graph(llama_context * ctx, const pymtp_graph_sample & params) : ctx(ctx) { pymtp_set_sample(ctx, params); }
    ~pymtp_sampling_graph() { pymtp_set_sample(ctx, {}); }

private:
    llama_context * ctx;
};

// Runs the batch with the sample in its graph, which is kept: depths come by turns.
int pymtp_pair::decode_and_sample(llama_context * ctx, pymtp_sample_job & job) {
    const pymtp_graph_sample params = job.params();
    const pymtp_sampling_graph drawing(ctx, params);
    if (int status = decode(ctx, batch.size())) {
        llama_synchronize(ctx);
        return status;
    }
    if (params.kind == PYMTP_SAMPLE_ARGMAX) {
        job.read(ctx);
    } else {
        llama_synchronize(ctx);
    }
    return sampled(job.seq, job.status, job.n_prefix);
}

// What came of a sample. Where there is no token, the sequence is emptied: it could not go on.
int pymtp_pair::sampled(int32_t seq, int status, size_t position) {
    if (status == PYMTP_OK) {
        return PYMTP_OK;
    }
    clear(seq);
    pymtp_set_error((status == PYMTP_INVALID ? "the grammar allows no token at position " : "no finite logits at position ") +
            std::to_string(position));
    return status;
}

// The token after the first n_prefix of the sequence's. Drafts have a confidence. PYMTP_FAILED when a logit is not a number,
// PYMTP_INVALID when the grammar ends here; `sampled` deals with that.
int pymtp_pair::sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence) {
    pymtp_sequence & s = sequences[seq];
    pymtp_stopwatch watch(counters.sample_seconds);
    const auto sampled = s.sampler->sample(from, n_prefix, s.tokens.data(), n_prefix, confidence != nullptr);
    if (sampled.token == LLAMA_TOKEN_NULL) {
        return PYMTP_FAILED;
    }
    *token = sampled.token;
    if (confidence) {
        *confidence = sampled.confidence; // whatever the draft: where the grammar allows none, the target will not sample it
        return PYMTP_OK;
    }
    if (!sampled.allowed) {
        return PYMTP_INVALID;
    }
    s.sampler->report(from.values, sampled.token, logprobs); // where it is asked for, these are a row's
    return PYMTP_OK;
}

int pymtp_pair::first_token(int32_t seq, llama_token * token) {
    const pymtp_sequence & s = sequences[seq];
    if (!s.first_logits) {
        pymtp_set_error("sequence " + std::to_string(seq) + " was not in the last prefill");
        return PYMTP_INVALID;
    }
    logprobs.clear();
    s.sampler->begin(s.n_past);
    return sampled(seq, sample(seq, row(s.first_logits), s.n_past, token, nullptr), s.n_past);
}
