#include "sample_job.h"

#include "pair.h"
#include "stopwatch.h"

#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <string>

// Whether argmax and top_k of the device's backend treat equals and NaN as pymtp promises: the patches see to it there. Others,
// Metal's among them, were never looked at by running them.
static bool keeps_promise(ggml_backend_dev_t device) {
    const std::string backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    return backend == "CUDA" || backend == "Vulkan";
}

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
    if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU || !keeps_promise(device)) {
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

llama_token pymtp_sample_batch::on_sample(void * batch, int32_t row, const float * logits, const llama_token * ids, int32_t n) {
    return static_cast<pymtp_sample_batch *>(batch)->job_of(row).sample({logits, ids, (size_t) n});
}

double pymtp_sample_batch::seconds(int32_t n_threads) const {
    double sum = 0.0;
    for (const pymtp_sample_job & job : jobs) {
        sum += job.seconds;
    }
    return sum / std::min<int32_t>(jobs.size(), n_threads);
}

size_t pymtp_sample_job::enough() const {
    const size_t of = confidences && pair->drafts_over_rows ? pair->vocabulary->tokens().size() : pair->n_vocab;
    return std::min(of, pair->sequences[seq].sampler->enough(confidences != nullptr));
}

pymtp_graph_sample pymtp_sample_batch::params() {
    // one graph for all: whoever needs most decides
    size_t enough = 1;
    for (const pymtp_sample_job & job : jobs) {
        const size_t own = job.enough();
        enough = own == 0 || enough == 0 ? 0 : std::max(enough, own);
    }
    pymtp_graph_sample params;
    if (enough == 0 || enough > jobs.front().pair->most_candidates) {
        params.kind = PYMTP_SAMPLE_ROW;
    } else if (enough == 1) {
        params.kind  = PYMTP_SAMPLE_ARGMAX;
        params.probs = jobs.front().confidences != nullptr;
    } else {
        params.kind         = PYMTP_SAMPLE_CANDIDATES;
        params.n_candidates = enough;
    }
    params.callback   = on_sample;
    params.user_data  = this;
    params.n_together = by_step ? 1 : n_rows;
    return params;
}

void pymtp_sample_batch::read(llama_context * ctx) {
    const int32_t n = jobs.size() * n_rows;
    std::vector<llama_token> tokens(n);
    std::vector<float>       values(n);
    pymtp_get_sampled(ctx, tokens.data(), values.data(), n);
    for (int32_t i = 0; i < n; ++i) {
        job_of(by_step ? i % jobs.size() : i).take(tokens[i], values[i]);
    }
}

llama_token pymtp_sample_job::sample(const pymtp_logits & from) {
    if (ended) {
        return 0;
    }
    llama_token token = LLAMA_TOKEN_NULL;
    int why = PYMTP_FAILED;
    pymtp_stopwatch watch(seconds);
    try {
        why = pair->sample(seq, from, n_prefix, &token, confidences ? &confidences[n_sampled] : nullptr);
    } catch (...) { // nothing may be thrown through ggml
    }
    return why == PYMTP_OK ? add(token) : fail(why);
}

void pymtp_sample_job::take(llama_token token, float value) {
    if (ended) {
        return;
    }
    if (!std::isfinite(value)) {
        fail(PYMTP_FAILED);
        return;
    }
    if (confidences) {
        confidences[n_sampled] = value;
    }
    add(token);
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
