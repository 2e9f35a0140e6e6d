#include "head_files.h"

#include "inspect.h"

#include "llama-hparams.h"
#include "llama-mmap.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace {

using files = std::vector<pymtp_gguf_file>;

const ggml_tensor * find_tensor(const files & parts, const std::string & name, const pymtp_gguf_file ** in = nullptr) {
    for (const pymtp_gguf_file & part : parts) {
        if (const ggml_tensor * found = ggml_get_tensor(part.tensors(), name.c_str())) {
            if (in) {
                *in = &part;
            }
            return found;
        }
    }
    return nullptr;
}

std::string block_prefix(int32_t block) { return "blk." + std::to_string(block) + "."; }

bool has_nextn(const files & parts, int32_t block) {
    return find_tensor(parts, block_prefix(block) + "nextn.eh_proj.weight");
}

std::set<int32_t> blocks_of(const files & parts) {
    std::set<int32_t> found;
    for (const pymtp_gguf_file & part : parts) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            const std::string name = t->name;
            if (name.rfind("blk.", 0) != 0) {
                continue;
            }
            const std::string number = name.substr(4, name.find('.', 4) - 4);
            const bool        whole  = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
            if (!whole || number.size() > 4 || std::stoi(number) >= (int32_t) LLAMA_MAX_LAYERS) {
                throw pymtp_file_error("tensor '" + name + "' is of no block that a model has");
            }
            found.insert(std::stoi(number));
        }
    }
    return found;
}

// Returns the number of the block that is a head. Throws when there is no such block, or more than one.
int32_t find_block(const files & head) {
    std::vector<int32_t> found;
    for (int32_t block : blocks_of(head)) {
        if (has_nextn(head, block)) {
            found.push_back(block);
        }
    }
    if (found.size() > 1) {
        throw pymtp_file_error("it has " + std::to_string(found.size()) +
                " blocks with nextn tensors, pymtp runs heads of one block");
    }
    if (!found.empty()) {
        return found[0];
    }
    for (const pymtp_gguf_file & part : head) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            if (std::strncmp(t->name, "mtp.", 4) == 0 || std::strncmp(t->name, "model.mtp.", 10) == 0) {
                throw pymtp_file_error("its tensors have the names of transformers' checkpoints, such as " +
                        std::string(t->name) + "; llama.cpp's converter names them blk.N.nextn.*");
            }
        }
    }
    throw pymtp_file_error("no head in the file: it has no tensor blk.N.nextn.eh_proj.weight");
}

// Returns the value of a key as a string, or nullopt if the file does not have the key. An array of equal values counts
// as a single value.
std::optional<std::string> key_text(const pymtp_gguf_file & file, const std::string & key) {
    const int64_t id = file.find(key);
    if (id < 0) {
        return std::nullopt;
    }
    const gguf_context * gguf = file.gguf();
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_UINT32:  return std::to_string(gguf_get_val_u32(gguf, id));
        case GGUF_TYPE_FLOAT32: {
            char text[32];
            snprintf(text, sizeof(text), "%g", gguf_get_val_f32(gguf, id));
            return text;
        }
        case GGUF_TYPE_STRING:  return gguf_get_val_str(gguf, id);
        case GGUF_TYPE_ARRAY:   break;
        default:                return std::nullopt;
    }
    if (gguf_get_arr_type(gguf, id) != GGUF_TYPE_INT32 && gguf_get_arr_type(gguf, id) != GGUF_TYPE_UINT32) {
        return std::nullopt;
    }
    const auto *                values = static_cast<const int32_t *>(gguf_get_arr_data(gguf, id));
    const std::vector<int32_t>  all(values, values + gguf_get_arr_n(gguf, id));
    std::string text;
    for (int32_t value : all) {
        text += (text.empty() ? "" : ", ") + std::to_string(value);
    }
    const bool same = !all.empty() &&
            std::all_of(all.begin(), all.end(), [&](int32_t value) { return value == all[0]; });
    return same ? std::to_string(all[0]) : text;
}

// Checks that model and head agree in the keys that describe the head's block as well as the trunk's blocks.
void check_shape(const pymtp_gguf_file & model, const pymtp_gguf_file & head, const std::string & arch) {
    for (const char * key : { "embedding_length", "attention.head_count", "attention.head_count_kv",
            "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.dimension_sections",
            "rope.freq_base", "attention.layer_norm_rms_epsilon", "feed_forward_length", "expert_count",
            "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length" }) {
        const std::string name = arch + "." + key;
        const auto of_model    = key_text(model, name);
        const auto of_head     = key_text(head,  name);
        if (of_model && of_head && *of_model != *of_head) {
            throw pymtp_file_error("its " + name + " is " + *of_head + ", the model's is " + *of_model);
        }
    }
}

// Checks that the vocabularies of model and head agree. A few tokens may differ, because fine-tuned models rename
// unused tokens.
void check_vocab(const pymtp_gguf_file & model, const pymtp_gguf_file & head) {
    for (const char * key : { "tokenizer.ggml.model", "tokenizer.ggml.pre" }) {
        const auto of_model = key_text(model, key);
        const auto of_head  = key_text(head,  key);
        if (of_model && of_head && *of_model != *of_head) {
            throw pymtp_file_error("its " + std::string(key) + " is '" + *of_head + "', the model's is '" + *of_model +
                    "'");
        }
    }
    const gguf_context * a = model.gguf();
    const gguf_context * b = head.gguf();
    const int64_t id_a     = model.find("tokenizer.ggml.tokens");
    const int64_t id_b     = head.find("tokenizer.ggml.tokens");
    const size_t  n        = gguf_get_arr_n(a, id_a);
    if (n != gguf_get_arr_n(b, id_b)) {
        throw pymtp_file_error("its vocabulary has " + std::to_string(gguf_get_arr_n(b, id_b)) +
                " tokens, the model's has " + std::to_string(n));
    }
    size_t n_different = 0;
    for (size_t i = 0; i < n; ++i) {
        n_different += std::strcmp(gguf_get_arr_str(a, id_a, i), gguf_get_arr_str(b, id_b, i)) != 0;
    }
    if (n_different > n/100) {
        throw pymtp_file_error(std::to_string(n_different) + " of its " + std::to_string(n) +
                " tokens are others than the model's");
    }
}

constexpr int    N_SAMPLES    = 64;
constexpr size_t SAMPLE_BYTES = 4096;

std::string read_samples(const pymtp_gguf_file & file, const ggml_tensor & tensor) {
    const size_t offset = gguf_get_data_offset(file.gguf()) +
        gguf_get_tensor_offset(file.gguf(), gguf_find_tensor(file.gguf(), tensor.name));
    const size_t size = ggml_nbytes(&tensor);
    const size_t n    = std::min(SAMPLE_BYTES, size);

    llama_file  data(file.path.c_str(), "rb");
    std::string samples(N_SAMPLES*n, '\0');
    for (int i = 0; i < N_SAMPLES; ++i) {
        data.seek(offset + (size - n)/(N_SAMPLES - 1)*i, SEEK_SET);
        data.read_raw(&samples[i*n], n);
    }
    return samples;
}

// Returns whether a matrix of the head seems to be a copy of a matrix of the model: whether samples of both are equal.
// Samples that are all zeros count as different.
bool is_same_matrix(const files & model, const char * name_in_model, const files & head, const char * name_in_head) {
    const pymtp_gguf_file * file_a = nullptr;
    const pymtp_gguf_file * file_b = nullptr;
    const ggml_tensor * a = find_tensor(model, name_in_model, &file_a);
    const ggml_tensor * b = find_tensor(head,  name_in_head,  &file_b);
    if (!a || !b || a->type != b->type || !ggml_are_same_shape(a, b)) {
        return false;
    }
    const std::string samples = read_samples(*file_b, *b);
    return samples.find_first_not_of('\0') != std::string::npos && samples == read_samples(*file_a, *a);
}

void check_output(const files & head, const ggml_tensor & output, size_t n_vocab) {
    if ((size_t) output.ne[1] != n_vocab) {
        throw pymtp_file_error("its output layer is for " + std::to_string(output.ne[1]) + " of " +
                std::to_string(n_vocab) + " tokens" + (find_tensor(head, "d2t") ? ", which the tensor d2t names" : "") +
                "; pymtp takes heads with a row for each token");
    }
}

pymtp_head_files find_head(const files & model, const files & head) {
    const std::string arch      = model[0].string("general.architecture").value_or("");
    const std::string head_arch = head[0].string("general.architecture").value_or("");
    if (arch != head_arch) {
        throw pymtp_file_error("its architecture is '" + head_arch + "', the model's is '" + arch + "'");
    }
    const int32_t number = find_block(head);

    pymtp_head_files found;
    found.block = pymtp_inspect_head(model).n_trunk;
    if (number != found.block && number != 0) {
        throw pymtp_file_error("it is block " + std::to_string(number) + ", and the model's trunk has " +
                std::to_string(found.block) + " blocks, so that its head would be block " +
                std::to_string(found.block));
    }
    pymtp_file_info info = {};
    check_shape(model[0], head[0], arch);
    pymtp_inspect_vocab(head[0]);
    check_vocab(model[0], head[0]);
    const size_t n_vocab = gguf_get_arr_n(model[0].gguf(), model[0].find("tokenizer.ggml.tokens"));
    for (const std::string & name : { std::string("output.weight"),
            block_prefix(number) + "nextn.shared_head_head.weight" }) {
        if (const ggml_tensor * t = find_tensor(head, name)) {
            check_output(head, *t, n_vocab);
        }
    }
    // Must come after check_output: a head with a reduced output has a d2t tensor, whose type would be refused here
    // with a misleading message.
    pymtp_inspect_head_tensors(head, info);

    for (const pymtp_gguf_file & part : head) {
        found.paths.push_back(part.path);
    }
    const std::string from = block_prefix(number);
    const std::string to   = block_prefix(found.block);
    for (const pymtp_gguf_file & part : head) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            const std::string name = t->name;
            if (name.rfind(from, 0) == 0) {
                found.names.emplace(name, to + name.substr(from.size()));
            }
        }
    }
    // takes a tensor from outside the head's block, if the block does not have one for the same purpose
    const auto take_own = [&](const std::string & name, const std::string & in_block) {
        if (find_tensor(head, name) && !find_tensor(head, from + in_block)) {
            found.names.emplace(name, to + in_block);
        }
    };
    const char * output = find_tensor(model, "output.weight") ? "output.weight" : "token_embd.weight";
    take_own("output_norm.weight", "nextn.shared_head_norm.weight");
    if (!is_same_matrix(model, "token_embd.weight", head, "token_embd.weight")) {
        take_own("token_embd.weight", "nextn.embed_tokens.weight");
    }
    if (!is_same_matrix(model, output, head, "output.weight")) {
        take_own("output.weight",      "nextn.shared_head_head.weight");
        take_own("output.scale",       "nextn.shared_head_head.scale");
        take_own("output.input_scale", "nextn.shared_head_head.input_scale");
    }
    return found;
}

// Returns the kind of a block's tensor: its name without the block's prefix and the suffix, such as "attn_q" or
// "nextn.eh_proj".
std::string tensor_kind(const std::string & name, const std::string & prefix) {
    return name.substr(prefix.size(), name.rfind('.') - prefix.size());
}

template <typename F> void for_each_name(const files & parts, F && f) {
    for (const pymtp_gguf_file & part : parts) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            f(std::string(t->name));
        }
    }
}

} // namespace

std::string pymtp_find_unknown_tensor(const std::string & model, const std::string & head) {
    const files trunk = pymtp_open_parts(model);
    const files parts = pymtp_open_parts(head);

    std::set<std::string> known = { "nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.embed_tokens",
            "nextn.shared_head_head", "nextn.shared_head_norm" };
    const std::string block = block_prefix(find_block(parts));
    for_each_name(trunk, [&](const std::string & name) {
        const size_t dot = name.rfind("blk.", 0) == 0 ? name.find('.', 4) : std::string::npos;
        if (dot != std::string::npos && (model != head || name.rfind(block, 0) != 0)) {
            known.insert(tensor_kind(name, name.substr(0, dot + 1)));
        }
    });
    std::string unknown;
    for_each_name(parts, [&](const std::string & name) {
        if (unknown.empty() && name.rfind(block, 0) == 0 && !known.count(tensor_kind(name, block))) {
            unknown = name;
        }
    });
    return unknown;
}

bool pymtp_is_head_alone(const files & parts) {
    const std::set<int32_t> blocks = blocks_of(parts);
    return blocks.size() == 1 && has_nextn(parts, *blocks.begin());
}

pymtp_head_files pymtp_find_head(const files & model, const std::string & path) {
    try {
        return find_head(model, pymtp_open_parts(path));
    } catch (const pymtp_file_error & refused) {
        throw pymtp_file_error("the head " + path + ": " + refused.what());
    }
}
