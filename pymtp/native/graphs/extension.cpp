// Attaches the extension to a context, and implements hooks and settings that belong to no other file.
#include "extension.h"

#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <stdexcept>
#include <tuple>

pymtp_extension::pymtp_extension(llama_context & ctx) : ctx(ctx) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(ctx.memory.get())) {
        kv     = hybrid->get_mem_attn();
        states = hybrid->get_mem_recr();
    } else {
        kv = dynamic_cast<llama_kv_cache *>(ctx.memory.get());
    }
    if (!kv) {
        throw std::runtime_error("the context has no K/V cache of a kind that pymtp knows");
    }
    for (const auto & [buft, size] : kv->memory_breakdown()) {
        kv_on_host &= ggml_backend_buft_is_host(buft);
    }
}

pymtp_extension & pymtp_extension::get(llama_context * ctx) {
    if (!ctx->pymtp) {
        ctx->pymtp = std::make_shared<pymtp_extension>(*ctx);
        ctx->cparams.pymtp.extension = ctx->pymtp.get();
    }
    return *ctx->pymtp;
}

bool pymtp_extension::abort_requested() const {
    return ctx.abort_callback && ctx.abort_callback(ctx.abort_callback_data);
}

bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    return cparams.pymtp.extension ? cparams.pymtp.extension->apply(ubatch, mctx) : mctx.apply();
}

bool pymtp_same_graph(const llama_cparams & a, const llama_cparams & b) {
    const auto fields = [](const pymtp_graph_settings & s) {
        return std::tie(s.extension, s.pre_norm, s.pending_hidden, s.deferred, s.take_hidden, s.replay, s.has_replay,
                s.device_ops, s.reduced_output, s.sample, s.n_candidates, s.probs);
    };
    return fields(a.pymtp) == fields(b.pymtp);
}

void pymtp_set_tap(llama_context * ctx, bool pre_norm) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (ext.settings().pre_norm != pre_norm) {
        ext.settings().pre_norm = pre_norm;

        // The new graph has the same nodes but different outputs. With the buffers reserved for the old graph, the
        // final norm would overwrite its input, which is now an output.
        ext.need_reserve();
    }
}

void pymtp_set_images(llama_context * ctx, pymtp_images_of images_of) {
    pymtp_extension::get(ctx).images_of = std::move(images_of);
}

std::string pymtp_weight_buffers(llama_context * ctx) {
    std::map<std::string, int> counts;
    for (const auto & [name, t] : llama_get_model(ctx)->tensors_by_name) {
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(t->buffer);
        // mapped files and host buffers count as "CPU", because both use the same kernels
        counts[ggml_backend_buft_is_host(buft) ? "CPU" : ggml_backend_buft_name(buft)]++;
    }
    std::string text;
    for (const auto & [name, n] : counts) {
        text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + name;
    }
    return text;
}
