// Allocates and writes the reduced output layer, and builds its nodes in graphs.
#include "reduced_output.h"

#include "extension.h"

#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>

static ggml_backend_buffer_t allocate(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc) {
    if (!no_alloc) {
        return ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    }
    ggml_backend_buffer_t placeholder = ggml_backend_buft_alloc_buffer(buft, 0);
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        t->buffer = placeholder;
    }
    return placeholder;
}

ggml_tensor * pymtp_reduced_output::full_layer(const llama_model & model) {
    ggml_tensor * own = model.layers[model.hparams.n_layer()].nextn.shared_head_head;
    return own ? own : model.output;
}

pymtp_reduced_output::pymtp_reduced_output(const llama_model & model, int64_t n_main, int64_t n_recent) :
    no_alloc(model.hparams.no_alloc), tokens_by_row(n_main + n_recent) {
    GGML_ASSERT(n_main % PYMTP_ROW_MULTIPLE == 0 && n_recent % PYMTP_ROW_MULTIPLE == 0);

    const ggml_init_params params = { 2*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    weights_ctx.reset(ggml_init(params));
    map_ctx.reset(ggml_init(params));

    const ggml_tensor * layer = full_layer(model);
    main   = ggml_new_tensor_2d(weights_ctx.get(), layer->type, layer->ne[0], n_main);
    recent = ggml_new_tensor_2d(weights_ctx.get(), layer->type, layer->ne[0], n_recent);
    map    = ggml_new_tensor_2d(map_ctx.get(), GGML_TYPE_I32, 1, n_main + n_recent);
    ggml_set_name(main,  "pymtp_draft_rows");
    ggml_set_name(recent, "pymtp_draft_rows_recent");
    ggml_set_name(map,   "pymtp_draft_tokens");

    // The matrices get a buffer of the same type as the output layer, so that the device uses the same layout; the map
    // gets plain memory of the device. Host memory that a GPU can access counts as memory of the CPU, because the CPU
    // runs the operations on it.
    ggml_backend_buffer_type_t buft   = ggml_backend_buffer_get_type(layer->buffer);
    ggml_backend_dev_t         device = ggml_backend_buft_get_device(buft);
    if (!device || ggml_backend_buft_is_host(buft)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    weights_buf.reset(allocate(weights_ctx.get(), buft, no_alloc));
    map_buf.reset(allocate(map_ctx.get(), ggml_backend_dev_buffer_type(device), no_alloc));
    if (!weights_buf || !map_buf) {
        throw std::runtime_error("no memory for the draft vocabulary");
    }
    // Marked as weights, because the scheduler runs an operation on the device where its weights are.
    ggml_backend_buffer_set_usage(weights_buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(map_buf.get(),     GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

ggml_tensor * pymtp_reduced_output::logits(const llm_graph_context & graph, ggml_tensor * cur,
        ggml_tensor * scale) const {
    return ggml_concat(graph.ctx0, graph.build_lora_mm(main, cur, scale), graph.build_lora_mm(recent, cur, scale), 0);
}

ggml_tensor * pymtp_reduced_output::tokens_of(ggml_context * ctx, ggml_tensor * rows) const {
    return ggml_reshape_1d(ctx, ggml_get_rows(ctx, map, rows), rows->ne[0]);
}

void pymtp_reduced_output::set(const llama_token * tokens, bool only_recent, const void * data) {
    const size_t first = only_recent ? main->ne[1] : 0;
    std::copy(tokens + first, tokens + tokens_by_row.size(), tokens_by_row.begin() + first);

    const char * rows = static_cast<const char *>(data);
    if (!only_recent) {
        ggml_backend_tensor_set(main, rows, 0, ggml_nbytes(main));
        rows += ggml_nbytes(main);
    }
    ggml_backend_tensor_set(recent, rows, 0, ggml_nbytes(recent));

    const size_t offset = first*sizeof(llama_token);
    ggml_backend_tensor_set(map, tokens_by_row.data() + first, offset, ggml_nbytes(map) - offset);
}

pymtp_bytes_by_buffer pymtp_reduced_output::bytes() const {
    pymtp_bytes_by_buffer sum;
    for (const auto & [ctx, buf] : { std::pair(weights_ctx.get(), weights_buf.get()),
            std::pair(map_ctx.get(), map_buf.get()) }) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buf);
        sum[buft] += no_alloc ? ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, buft)
                : ggml_backend_buffer_get_size(buf);
    }
    return sum;
}

// ── of a context ──

void pymtp_extension::make_reduced_output(int32_t n_main, int32_t n_recent) {
    reduced_output = std::make_unique<pymtp_reduced_output>(ctx.model, n_main, n_recent);
}

void pymtp_extension::set_reduced_output(const llama_token * tokens, bool only_recent, const void * data) {
    ctx.synchronize(); // waits for a running graph, which may still read the rows
    reduced_output->set(tokens, only_recent, data);
}
