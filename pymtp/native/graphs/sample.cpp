// Builds the nodes that sample at the end of a graph, and copies argmax samples to the host.
#include "sample.h"

#include "extension.h"

#include <algorithm>
#include <stdexcept>
#include <string>

void pymtp_graph_sampler::sample_rows(ggml_tensor * dst, int ith, int nth, const pymtp_reduced_output * rows) {
    const ggml_tensor * logits = dst->src[0];
    const ggml_tensor * ids    = dst->src[1];

    if (ith == 0) {
        n_bytes += ggml_nbytes(logits) + (ids ? ggml_nbytes(ids) : 0);
    }

    llama_token * const tokens = candidates.data() + ith*params.n_candidates;
    const auto row = [](const ggml_tensor * t, int64_t i) { return static_cast<const char *>(t->data) + i*t->nb[1]; };
    for (int64_t i = 0; i < dst->ne[0]; ++i) {
        if (i/params.rows_per_task % nth != ith) {
            continue;
        }
        const auto * from = ids ? reinterpret_cast<const llama_token *>(row(ids, i)) : nullptr;
        if (rows && from) {
            // the graph's ids are numbers of rows of the reduced output layer
            std::transform(from, from + logits->ne[0], tokens, [&](int32_t n) { return rows->tokens()[n]; });
            from = tokens;
        } else if (rows) {
            from = rows->tokens().data();
        }
        static_cast<int32_t *>(dst->data)[i] = params.callback(params.user_data, i,
                reinterpret_cast<const float *>(row(logits, i)), from, logits->ne[0]);
    }
}

static void sample_rows(ggml_tensor * dst, int ith, int nth, void * data) {
    auto & extension = *static_cast<pymtp_extension *>(data);
    extension.sampler.sample_rows(dst, ith, nth, extension.settings().reduced_output);
}

pymtp_sampled pymtp_build_sample(const llm_graph_context & graph, ggml_tensor * logits) {
    const auto &   settings = graph.cparams.pymtp;
    ggml_context * ctx      = graph.ctx0;
    const int64_t  n_rows   = logits->ne[1];

    // Returns the values at n ids, for each row of `values`; each row has its own ids.
    const auto pick = [&](ggml_tensor * values, ggml_tensor * ids, int64_t n) {
        values = ggml_reshape_3d(ctx, values, 1, values->ne[0], n_rows);
        return ggml_get_rows(ctx, values, ggml_reshape_2d(ctx, ids, n, n_rows));
    };

    pymtp_sampled sampled;

    if (settings.sample == PYMTP_SAMPLE_ARGMAX) {
        sampled.tokens = ggml_argmax(ctx, logits);
        sampled.values = pick(settings.probs ? ggml_soft_max(ctx, logits) : logits, sampled.tokens, 1);
        graph.cb(sampled.values, "sampled_values", -1);
        ggml_build_forward_expand(graph.gf, sampled.values);
        if (settings.reduced_output) {
            sampled.tokens = settings.reduced_output->tokens_of(ctx, sampled.tokens);
        }
    } else {
        ggml_tensor * from[2] = { logits, nullptr };
        if (settings.sample == PYMTP_SAMPLE_CANDIDATES) {
            // A single candidate is found with argmax, which returns the lowest id among equal logits; top_k may return
            // any.
            from[1] = settings.n_candidates == 1 ? ggml_reshape_2d(ctx, ggml_argmax(ctx, logits), 1, n_rows)
                                                 : ggml_top_k(ctx, logits, settings.n_candidates);
            from[0] = ggml_reshape_2d(ctx, pick(logits, from[1], settings.n_candidates), settings.n_candidates, n_rows);
        }
        sampled.tokens = ggml_custom_4d(ctx, GGML_TYPE_I32, n_rows, 1, 1, 1, from, from[1] ? 2 : 1, sample_rows,
                GGML_N_TASKS_MAX, settings.extension);
    }
    graph.cb(sampled.tokens, "sampled", -1);
    ggml_build_forward_expand(graph.gf, sampled.tokens);

    return sampled;
}

void pymtp_sampled::append(ggml_context * ctx, const pymtp_sampled & next) {
    if (next.values) {
        tokens = tokens ? ggml_concat(ctx, tokens, next.tokens, 0) : next.tokens;
        values = values ? ggml_concat(ctx, values, next.values, 0) : next.values;
    }
}

void pymtp_sampled::set_outputs(const llm_graph_context & graph) const {
    if (values) {
        ggml_build_forward_expand(graph.gf, tokens);
        ggml_build_forward_expand(graph.gf, values);

        graph.res->t_sampled       = { tokens };
        graph.res->t_sampled_probs = { values };
    }
}

void pymtp_graph_sampler::set(const pymtp_graph_sample & new_params, int32_t n_threads) {
    params = new_params;
    candidates.resize(params.n_candidates*n_threads); // here, because the operation that uses it must not throw
}

void pymtp_graph_sampler::fetch(const llm_graph_result * res, ggml_backend_sched_t sched) {
    sampled.clear();
    values.clear();
    if (params.kind != PYMTP_SAMPLE_ARGMAX || !res || res->t_sampled.empty()) {
        return;
    }
    const auto copy = [&](ggml_tensor * t, auto & to) {
        to.resize(ggml_nelements(t));
        ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, t), t, to.data(), 0, ggml_nbytes(t));
        n_bytes += ggml_nbytes(t);
    };
    copy(res->t_sampled[0],       sampled);
    copy(res->t_sampled_probs[0], values);
}

void pymtp_graph_sampler::get(llama_token * to, float * to_values, int32_t n) const {
    if (sampled.size() != (size_t) n) {
        throw std::runtime_error("the last batch did not sample " + std::to_string(n) + " tokens by argmax");
    }
    std::copy(sampled.begin(), sampled.end(), to);
    std::copy(values.begin(), values.end(), to_values);
}

void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & params) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    ext.settings().sample       = params.kind;
    ext.settings().n_candidates = params.n_candidates;
    ext.settings().probs        = params.probs;
    ext.sampler.set(params, std::max(ctx->n_threads(), ctx->n_threads_batch()));
}

void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n) {
    ctx->synchronize();
    pymtp_extension::get(ctx).sampler.get(tokens, values, n);
}
