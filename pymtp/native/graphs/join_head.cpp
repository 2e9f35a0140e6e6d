// Adds the tensors of a head in separate files to the model that is being loaded.
#include "pymtp_hooks.h"

#include "llama-model-loader.h"

#include <stdexcept>

namespace {

void add_to_totals(llama_model_loader & ml, const ggml_tensor & tensor, int sign) {
    ml.n_elements += sign*ggml_nelements(&tensor);
    ml.n_bytes    += sign*(int64_t) ggml_nbytes(&tensor);
}

void remove_block(llama_model_loader & ml, const std::string & prefix) {
    for (auto it = ml.weights_map.begin(); it != ml.weights_map.end();) {
        if (it->first.rfind(prefix, 0) == 0) {
            add_to_totals(ml, *it->second.tensor, -1);
            it = ml.weights_map.erase(it);
        } else {
            ++it;
        }
    }
}

// Adds those tensors of a file that `names` lists, under their new names. Returns the number of tensors added.
size_t add_file(llama_model_loader & ml, const std::string & path, const std::map<std::string, std::string> & names) {
    ggml_context * shapes = nullptr;
    const gguf_context_ptr keys(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &shapes }));
    if (!keys) {
        throw std::runtime_error("the head's file " + path + " cannot be read");
    }
    ml.contexts.emplace_back(shapes);
    ml.files.emplace_back(new llama_file(path.c_str(), "rb", ml.use_direct_io));

    size_t n = 0;
    for (ggml_tensor * t = ggml_get_first_tensor(shapes); t; t = ggml_get_next_tensor(shapes, t)) {
        const auto found = names.find(t->name);
        if (found == names.end()) {
            continue;
        }
        const llama_model_loader::llama_tensor_weight weight(ml.files.back().get(), ml.files.size() - 1, keys.get(), t);
        ggml_set_name(t, found->second.c_str());
        if (!ml.weights_map.emplace(found->second, weight).second) {
            throw std::runtime_error("the head's tensor " + found->first + " would be " + found->second +
                    ", which is there already");
        }
        add_to_totals(ml, *t, 1);
        ++n;
    }
    return n;
}

// Sets the block count to n_block, and extends the keys that have a value for each block: the head's block gets the
// same values as the last block of the trunk, but is not recurrent.
void set_block_count(gguf_context * keys, const std::string & prefix, size_t n_before, size_t n_block) {
    for (const char * key : { "attention.head_count", "attention.head_count_kv", "attention.recurrent_layers",
            "feed_forward_length", "expert_feed_forward_length", "expert_used_count" }) {
        const std::string name = prefix + key;
        const int64_t     id   = gguf_find_key(keys, name.c_str());
        if (id < 0 || gguf_get_kv_type(keys, id) != GGUF_TYPE_ARRAY || gguf_get_arr_n(keys, id) != n_before) {
            continue;
        }
        const gguf_type type = gguf_get_arr_type(keys, id);
        const bool      recr = name == prefix + "attention.recurrent_layers";
        const auto      set  = [&](auto no) {
            const auto * from = static_cast<const decltype(no) *>(gguf_get_arr_data(keys, id));
            std::vector<decltype(no)> values(from, from + n_before);
            values.resize(n_block, recr ? no : values.back());
            gguf_set_arr_data(keys, name.c_str(), type, values.data(), values.size());
        };
        if (type == GGUF_TYPE_BOOL) {
            set(int8_t(0));
        } else if (type == GGUF_TYPE_INT32 || type == GGUF_TYPE_UINT32) {
            set(int32_t(0));
        }
    }
    gguf_set_val_u32(keys, (prefix + "block_count").c_str(), n_block);
}

} // namespace

void pymtp_join_head(llama_model_loader & ml) {
    const auto found = ml.kv_overrides.find(PYMTP_HEAD_KEY);
    if (found == ml.kv_overrides.end()) {
        return;
    }
    const auto & head = *reinterpret_cast<const pymtp_head_files *>(found->second.val_i64);

    remove_block(ml, "blk." + std::to_string(head.block) + ".");
    size_t n = 0;
    for (const std::string & path : head.paths) {
        n += add_file(ml, path, head.names);
    }
    if (n != head.names.size()) {
        throw std::runtime_error("the head's file " + head.paths[0] + " was written to");
    }
    ml.n_tensors = ml.weights_map.size();

    const std::string prefix  = ml.get_arch_name() + ".";
    const uint32_t    n_heads = head.paths.empty() ? 0 : 1;
    uint32_t n_before         = 0;
    ml.get_key(LLM_KV_BLOCK_COUNT, n_before);
    set_block_count(ml.metadata, prefix, n_before, head.block + n_heads);
    gguf_set_val_u32(ml.metadata, (prefix + "nextn_predict_layers").c_str(), n_heads);
}
