#include "sample_job.h"

#include "stopwatch.h"

#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <string>

// Returns whether argmax and top_k of the device's backend treat equal values and NaN as documented. Our patches ensure
// this for CUDA and Vulkan; other backends, such as Metal, were never tested.
static bool has_defined_ties(ggml_backend_dev_t device) {
    const std::string backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    return backend == "CUDA" || backend == "Vulkan";
}

size_t pymtp_max_candidates(const llama_model & model, pymtp_sample_on sample_on) {
    if (sample_on != PYMTP_SAMPLE_ON_AUTO) {
        return sample_on == PYMTP_SAMPLE_ON_DEVICE ? PYMTP_MAX_CANDIDATES : 0;
    }
    const ggml_backend_buffer_t buffer = model.output ? model.output->buffer : nullptr;
    if (!buffer || ggml_backend_buffer_is_host(buffer)) {
        return 0;
    }
    // The device is checked as well, because the CPU's buffers with repacked weights do not count as host buffers.
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
    if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU || !has_defined_ties(device)) {
        return 0;
    }
    const ggml_context_ptr ctx(ggml_init({8 * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true}));
    const int64_t n_vocab = model.output->ne[1];
    ggml_tensor * logits  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_vocab, 1);
    ggml_tensor * argmax  = ggml_argmax(ctx.get(), logits);
    ggml_tensor * probs   = ggml_soft_max(ctx.get(), logits);
    ggml_tensor * prob    = ggml_get_rows(ctx.get(), ggml_reshape_2d(ctx.get(), probs, 1, n_vocab), argmax);
    ggml_tensor * top_k   = ggml_top_k(ctx.get(), logits, std::min<int64_t>(PYMTP_MAX_CANDIDATES, n_vocab));
    for (const ggml_tensor * op : {argmax, probs, prob}) {
        if (!ggml_backend_dev_supports_op(device, op)) {
            return 0;
        }
    }
    return ggml_backend_dev_supports_op(device, top_k) ? PYMTP_MAX_CANDIDATES : 1;
}

std::string pymtp_no_token_error(int status, size_t position) {
    return (status == PYMTP_DEAD_END ? "the grammar allows no token at position " : "no finite logits at position ") +
        std::to_string(position);
}

llama_token pymtp_sample_batch::on_sample(void * batch, int32_t row, const float * logits, const llama_token * ids,
        int32_t n) {
    return static_cast<pymtp_sample_batch *>(batch)->job_of(row).sample({logits, ids, (size_t) n});
}

double pymtp_sample_batch::seconds(int32_t n_threads) const {
    double sum = 0.0;
    for (const pymtp_sample_job & job : jobs) {
        sum += job.seconds;
    }
    return sum / std::min<int32_t>(jobs.size(), n_threads);
}

pymtp_graph_sample pymtp_sample_batch::graph_params(size_t max_candidates) {
    // One graph serves all jobs, so it must pick as many candidates as the most demanding job needs.
    size_t needed = 1;
    for (const pymtp_sample_job & job : jobs) {
        const size_t own = std::min(n_logits, job.sequence->sampler->n_candidates_needed(job.is_draft()));
        needed = own == 0 || needed == 0 ? 0 : std::max(needed, own);
    }
    pymtp_graph_sample params;
    if (needed == 0 || needed > max_candidates) {
        params.kind = PYMTP_SAMPLE_ROW;
    } else if (needed == 1) {
        params.kind  = PYMTP_SAMPLE_ARGMAX;
        params.probs = jobs.front().is_draft();
    } else {
        params.kind         = PYMTP_SAMPLE_CANDIDATES;
        params.n_candidates = needed;
    }
    params.callback      = on_sample;
    params.user_data     = this;
    params.rows_per_task = by_step ? 1 : n_rows;
    return params;
}

void pymtp_sample_batch::read_argmax(llama_context * ctx) {
    const int32_t n = jobs.size() * n_rows;
    std::vector<llama_token> tokens(n);
    std::vector<float>       values(n);
    pymtp_get_sampled(ctx, tokens.data(), values.data(), n);
    for (int32_t i = 0; i < n; ++i) {
        job_of(by_step ? i % jobs.size() : i).add_argmax(tokens[i], values[i]);
    }
}

llama_token pymtp_sample_job::sample(const pymtp_logits & from) {
    if (done) {
        return 0;
    }
    llama_token token = LLAMA_TOKEN_NULL;
    int reason = PYMTP_FAILED;
    pymtp_stopwatch watch(seconds);
    try {
        reason = sequence->sample(from, n_prefix, &token, is_draft() ? &confidences[n_sampled] : nullptr);
    } catch (...) { // no exception may pass through ggml
    }
    return reason == PYMTP_OK ? add(token) : fail(reason);
}

void pymtp_sample_job::add_argmax(llama_token token, float value) {
    if (done) {
        return;
    }
    if (!std::isfinite(value)) {
        fail(PYMTP_FAILED);
        return;
    }
    if (is_draft()) {
        confidences[n_sampled] = value;
    }
    add(token);
}

llama_token pymtp_sample_job::add(llama_token token) {
    sampled[n_sampled++] = token;
    ++n_prefix;
    if (row_tokens) {
        done = n_sampled == n_rows || token != row_tokens[n_sampled];
    } else {
        sequence->add_draft(token);
    }
    return token;
}

llama_token pymtp_sample_job::fail(int reason) {
    status = reason;
    done   = true;
    return 0;
}
