#include "adapters.h"

#include "gguf.h"
#include "llama-adapter.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <stdexcept>
#include <string>

static bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

static const char EMBEDDINGS[] = "token_embd.weight";

// Returns why a pair of LoRA matrices cannot be used, or "" if it can. llama.cpp checks only the outer dimensions and,
// except for embeddings, the rank. Any other mismatch fails an assertion in the first graph, or silently disables the
// adapter.
static std::string adapter_error(const llama_model & model, const std::string & name,
        const llama_adapter_lora_weight & pair) {
    const ggml_tensor & weight = *model.get_tensor(name.c_str());
    const ggml_tensor & a = *pair.a;
    const ggml_tensor & b = *pair.b;
    if (weight.ne[1] == 1 || name.find(".ssm_conv1d.") != std::string::npos) {
        return "no graph multiplies by that tensor's adapter";
    }
    if (name == EMBEDDINGS && model.output && EMBEDDINGS == std::string(ggml_get_name(model.output))) {
        return "the model's embeddings are its output layer as well, and llama.cpp adapts only one of the two";
    }
    const int64_t rank_of_a = name == EMBEDDINGS ? a.ne[0] : a.ne[1];
    if (rank_of_a < 1 || rank_of_a != b.ne[0]) {
        return "its two matrices are of rank " + std::to_string(rank_of_a) + " and " + std::to_string(b.ne[0]);
    }
    if (a.ne[2] != weight.ne[2] || b.ne[2] != weight.ne[2] || a.ne[3] != 1 || b.ne[3] != 1) {
        return "its matrices are not as many as the model's";
    }
    return "";
}

// Logs a warning if an adapter's file has norm vectors beside its matrices, because llama.cpp ignores such vectors
// silently.
static void warn_ignored_norms(const char * path) {
    gguf_init_params params = { /*.no_alloc =*/ true, /*.ctx =*/ nullptr };
    gguf_context * file = gguf_init_from_file(path, params);
    int64_t n = 0;
    for (int64_t i = 0; file && i < gguf_get_n_tensors(file); ++i) {
        n += ends_with(gguf_get_tensor_name(file, i), "_norm.weight");
    }
    gguf_free(file);
    if (n) {
        LLAMA_LOG_WARN("the adapter %s has %lld tensors of norms, which llama.cpp does not apply\n", path,
                (long long) n);
    }
}

void pymtp_load_adapters(pymtp_model & model, const pymtp_model_options & options) {
    for (int32_t i = 0; i < options.n_lora; ++i) {
        const std::string path = options.lora[i];
        llama_adapter_lora * adapter = llama_adapter_lora_init(model.shared.get(), path.c_str());
        if (!adapter) {
            throw std::runtime_error("llama.cpp cannot load the adapter " + path);
        }
        if (llama_adapter_get_alora_n_invocation_tokens(adapter) > 0) {
            throw std::runtime_error("the adapter " + path +
                " begins at tokens of its own (aLoRA), pymtp takes those that work on all tokens");
        }
        for (const auto & [name, pair] : adapter->ab_map) {
            const std::string fault = adapter_error(*model.shared, name, pair);
            if (!fault.empty()) {
                throw std::runtime_error("the adapter " + path + " cannot be used for " + name + ": " + fault);
            }
        }
        if (adapter->ab_map.empty()) {
            throw std::runtime_error("the adapter " + path + " has no matrices: it would change nothing");
        }
        warn_ignored_norms(path.c_str());
        model.adapters.push_back(adapter);
        model.adapter_scales.push_back(options.lora_scales[i]);
    }
}
