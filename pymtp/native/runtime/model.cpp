// Reads what a GGUF says of itself before llama.cpp builds a model from it: some faults of a file end the process
// inside llama.cpp, so they are refused here.
#include "model.h"
#include "border.h"
#include "grammar.h"
#include "host.h"
#include "pymtp.h"

#include "gguf.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>

namespace {

struct gguf_deleter {
    void operator()(gguf_context * gguf) const { gguf_free(gguf); }
};

bool read_u32(const gguf_context * gguf, const std::string & key, int32_t & value) {
    const int64_t id = gguf_find_key(gguf, key.c_str());
    if (id < 0) {
        return false;
    }
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_UINT16: value = gguf_get_val_u16(gguf, id); return true;
        case GGUF_TYPE_UINT32: value = (int32_t) gguf_get_val_u32(gguf, id); return true;
        case GGUF_TYPE_INT32:  value = gguf_get_val_i32(gguf, id); return true;
        default:               return false;
    }
}

std::string read_string(const gguf_context * gguf, const std::string & key) {
    const int64_t id = gguf_find_key(gguf, key.c_str());
    return id >= 0 && gguf_get_kv_type(gguf, id) == GGUF_TYPE_STRING ? gguf_get_val_str(gguf, id) : "";
}

int refuse(const std::string & why) {
    pymtp_set_error(why);
    return PYMTP_INVALID;
}

bool keep_loading(float /*progress*/, void * /*user_data*/) {
    return !pymtp_host_wants_stop();
}

int inspect(const char * path, pymtp_file_info * info) {
    std::unique_ptr<gguf_context, gguf_deleter> gguf(
            gguf_init_from_file(path, { /*.no_alloc =*/ true, /*.ctx =*/ nullptr }));
    if (!gguf) {
        return refuse("not a readable GGUF file");
    }

    *info = {};
    const std::string arch = read_string(gguf.get(), "general.architecture");
    std::strncpy(info->architecture, arch.c_str(), sizeof(info->architecture) - 1);
    if (arch != "qwen35" && arch != "qwen35moe") {
        return refuse("architecture is '" + arch + "', pymtp runs qwen35 and qwen35moe");
    }

    int32_t split_no = 0;
    read_u32(gguf.get(), "split.no", split_no);
    if (split_no != 0) {
        return refuse("this is part " + std::to_string(split_no + 1) + " of a split model, name the first part");
    }

    int32_t n_block = 0;
    if (!read_u32(gguf.get(), arch + ".block_count", n_block) || n_block < 1 || n_block > 4096) {
        return refuse("no usable " + arch + ".block_count in the file");
    }
    read_u32(gguf.get(), arch + ".nextn_predict_layers", info->n_layer_mtp);
    if (info->n_layer_mtp < 0 || info->n_layer_mtp > 1 || info->n_layer_mtp >= n_block) {
        return refuse(arch + ".nextn_predict_layers is " + std::to_string(info->n_layer_mtp) + ", pymtp runs heads of one block");
    }
    info->n_layer = n_block - info->n_layer_mtp;

    for (const char * key : { "embedding_length", "attention.head_count", "ssm.state_size", "ssm.group_count",
                              "ssm.time_step_rank", "ssm.inner_size", "ssm.conv_kernel" }) {
        int32_t value = 0;
        const int64_t id = gguf_find_key(gguf.get(), (arch + "." + key).c_str());
        const bool is_array = id >= 0 && gguf_get_kv_type(gguf.get(), id) == GGUF_TYPE_ARRAY;
        if (!is_array && (!read_u32(gguf.get(), arch + "." + key, value) || value < 1)) {
            return refuse("no usable " + arch + "." + key + " in the file");
        }
    }

    read_u32(gguf.get(), arch + ".embedding_length", info->n_embd);
    read_u32(gguf.get(), arch + ".context_length", info->n_ctx_train);

    std::map<ggml_type, size_t> bytes;
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
        bytes[gguf_get_tensor_type(gguf.get(), i)] += gguf_get_tensor_size(gguf.get(), i);
    }
    const auto most = std::max_element(bytes.begin(), bytes.end(), [](const auto & a, const auto & b) { return a.second < b.second; });
    if (most == bytes.end()) {
        return refuse("no tensors in the file");
    }
    std::strncpy(info->weight_type, ggml_type_name(most->first), sizeof(info->weight_type) - 1);

    const std::string tap = read_string(gguf.get(), arch + ".nextn_tap");
    info->tap = tap == "post_norm" ? PYMTP_TAP_POST_NORM : tap == "pre_norm" ? PYMTP_TAP_PRE_NORM : -1;
    if (!tap.empty() && info->tap < 0) {
        return refuse(arch + ".nextn_tap is '" + tap + "', known are post_norm and pre_norm");
    }
    return PYMTP_OK;
}

} // namespace

int pymtp_inspect(const char * path, pymtp_file_info * info) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] { return inspect(path, info); });
}

static pymtp_model * load(const char * path, const llama_model_params & params) {
    std::shared_ptr<llama_model> model(llama_model_load_from_file(path, params), llama_model_free);
    if (!model) {
        pymtp_set_error("llama.cpp cannot load the file");
        return nullptr;
    }
    return new pymtp_model(std::move(model));
}

pymtp_model * pymtp_model_load(const char * path, int32_t n_gpu_layers, bool mtp, bool vocab_only) {
    return pymtp_guarded<pymtp_model *>(nullptr, [&] {
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers      = n_gpu_layers;
        params.load_mtp          = mtp;
        params.vocab_only        = vocab_only;
        params.progress_callback = keep_loading;
        return load(path, params);
    });
}

pymtp_model * pymtp_model_plan(const char * path, int32_t n_gpu_layers, bool mtp) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = n_gpu_layers;
    params.load_mtp     = mtp;
    params.no_alloc     = true;
    params.load_mode    = LLAMA_LOAD_MODE_NONE; // a mapped file would be there already
    return load(path, params);
}

void pymtp_model_free(pymtp_model * model) {
    delete model;
}

std::shared_ptr<const pymtp_spelling> pymtp_model::spelling() const {
    std::call_once(made_spelling, [&] {
        kept_spelling = std::make_shared<pymtp_spelling>(llama_model_get_vocab(shared.get()));
    });
    return kept_spelling;
}

llama_model * pymtp_model_get(const pymtp_model * model) {
    return model->shared.get();
}
