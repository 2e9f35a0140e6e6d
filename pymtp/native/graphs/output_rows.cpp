// The draft vocabulary's rows: their memory, and what graphs do with them.
#include "output_rows.h"

#include "extension.h"

#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>

static ggml_backend_buffer_t allocate(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc) {
    if (!no_alloc) {
        return ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    }
    ggml_backend_buffer_t stands_for = ggml_backend_buft_alloc_buffer(buft, 0);
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        t->buffer = stands_for;
    }
    return stands_for;
}

ggml_tensor * pymtp_output_rows::layer_of(const llama_model & model) {
    ggml_tensor * own = model.layers[model.hparams.n_layer()].nextn.shared_head_head;
    return own ? own : model.output;
}

pymtp_output_rows::pymtp_output_rows(const llama_model & model, int64_t n_main, int64_t n_annex) :
    no_alloc(model.hparams.no_alloc), tokens_by_row(n_main + n_annex) {
    GGML_ASSERT(n_main % PYMTP_ROW_STEP == 0 && n_annex % PYMTP_ROW_STEP == 0);

    const ggml_init_params params = { 2*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    weights_ctx.reset(ggml_init(params));
    map_ctx.reset(ggml_init(params));

    const ggml_tensor * layer = layer_of(model);
    main  = ggml_new_tensor_2d(weights_ctx.get(), layer->type, layer->ne[0], n_main);
    annex = ggml_new_tensor_2d(weights_ctx.get(), layer->type, layer->ne[0], n_annex);
    map   = ggml_new_tensor_2d(map_ctx.get(), GGML_TYPE_I32, 1, n_main + n_annex);
    ggml_set_name(main,  "pymtp_draft_rows");
    ggml_set_name(annex, "pymtp_draft_rows_annex");
    ggml_set_name(map,   "pymtp_draft_tokens");

    // weights in a layout that a device has for them, the map in its plain memory; memory of the host that a device can reach
    // is for operations of the CPU
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
    // operations go where their weights are
    ggml_backend_buffer_set_usage(weights_buf.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(map_buf.get(),     GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

ggml_tensor * pymtp_output_rows::logits(const llm_graph_context & graph, ggml_tensor * cur, ggml_tensor * scale) const {
    return ggml_concat(graph.ctx0, graph.build_lora_mm(main, cur, scale), graph.build_lora_mm(annex, cur, scale), 0);
}

ggml_tensor * pymtp_output_rows::tokens_of(ggml_context * ctx, ggml_tensor * rows) const {
    return ggml_reshape_1d(ctx, ggml_get_rows(ctx, map, rows), rows->ne[0]);
}

void pymtp_output_rows::set(const llama_token * tokens, bool only_annex, const void * data) {
    const size_t first = only_annex ? main->ne[1] : 0;
    std::copy(tokens + first, tokens + tokens_by_row.size(), tokens_by_row.begin() + first);

    const char * rows = static_cast<const char *>(data);
    if (!only_annex) {
        ggml_backend_tensor_set(main, rows, 0, ggml_nbytes(main));
        rows += ggml_nbytes(main);
    }
    ggml_backend_tensor_set(annex, rows, 0, ggml_nbytes(annex));

    const size_t offset = first*sizeof(llama_token);
    ggml_backend_tensor_set(map, tokens_by_row.data() + first, offset, ggml_nbytes(map) - offset);
}

pymtp_bytes pymtp_output_rows::bytes() const {
    pymtp_bytes sum;
    for (const auto & [ctx, buf] : { std::pair(weights_ctx.get(), weights_buf.get()), std::pair(map_ctx.get(), map_buf.get()) }) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buf);
        sum[buft] += no_alloc ? ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, buft) : ggml_backend_buffer_get_size(buf);
    }
    return sum;
}

// ── of a context ──

void pymtp_extension::make_draft_rows(int32_t n_main, int32_t n_annex) {
    output_rows = std::make_unique<pymtp_output_rows>(ctx.model, n_main, n_annex);
}

void pymtp_extension::set_draft_rows(const llama_token * tokens, bool only_annex, const void * data) {
    ctx.synchronize(); // what a graph still reads is about to be written
    output_rows->set(tokens, only_annex, data);
}
