// Allocates and writes the reduced output layer, and builds its nodes in graphs.
#include "reduced_output.h"

#include "extension.h"

#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>

ggml_tensor * pymtp_draft_output_layer(const llama_model & model) {
    ggml_tensor * own = model.layers[model.hparams.n_layer()].nextn.shared_head_head;
    return own ? own : model.output;
}

pymtp_reduced_output::pymtp_reduced_output(const llama_model & model, int64_t n_main, int64_t n_recent) :
    weights(2, model.hparams.no_alloc), maps(1, model.hparams.no_alloc), tokens_by_row(n_main + n_recent) {
    GGML_ASSERT(n_main % PYMTP_ROW_MULTIPLE == 0 && n_recent % PYMTP_ROW_MULTIPLE == 0);

    const ggml_tensor * layer = pymtp_draft_output_layer(model);
    main   = weights.add(layer->type, "pymtp_draft_rows",        layer->ne[0], n_main);
    recent = weights.add(layer->type, "pymtp_draft_rows_recent", layer->ne[0], n_recent);
    map    = maps.add(GGML_TYPE_I32,  "pymtp_draft_tokens",      1, n_main + n_recent);

    // The matrices get a buffer of the same type as the output layer, so that the device uses the same layout; the map
    // gets plain memory of the device. Host memory that a GPU can access counts as memory of the CPU, because the CPU
    // runs the operations on it.
    ggml_backend_buffer_type_t buft   = ggml_backend_buffer_get_type(layer->buffer);
    ggml_backend_dev_t         device = ggml_backend_buft_get_device(buft);
    if (!device || ggml_backend_buft_is_host(buft)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    // Marked as weights, because the scheduler runs an operation on the device where its weights are.
    const char * purpose = "the draft vocabulary";
    ggml_backend_buffer_set_usage(weights.allocate(buft, purpose), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(maps.allocate(ggml_backend_dev_buffer_type(device), purpose),
            GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
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

void pymtp_reduced_output::add_bytes(pymtp_bytes_by_buffer & sum) const {
    weights.add_bytes(sum);
    maps.add_bytes(sum);
}

// ── of a context ──

void pymtp_make_reduced_output(llama_context * ctx, int32_t n_main, int32_t n_recent) {
    pymtp_extension::get(ctx).reduced_output =
        std::make_unique<pymtp_reduced_output>(ctx->get_model(), n_main, n_recent);
}

void pymtp_set_reduced_output(llama_context * ctx, const llama_token * tokens, bool only_recent, const void * data) {
    ctx->synchronize(); // waits for a running graph, which may still read the rows
    pymtp_extension::get(ctx).reduced_output->set(tokens, only_recent, data);
}

void pymtp_use_reduced_output(llama_context * ctx, bool value) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    ext.settings().reduced_output = value ? ext.reduced_output.get() : nullptr;
}
