// Validates the types of a model's tensors, their places in the file, and whether any are missing.
#include "inspect.h"

#include "ggml-cpu.h"
#include "llama-mmap.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace {

bool ends_with(const std::string & text, const char * end) {
    const size_t n = std::strlen(end);
    return text.size() >= n && text.compare(text.size() - n, n, end) == 0;
}

// Returns whether graphs use the weights element by element, to add them to rows or to multiply rows with them.
bool is_elementwise(const std::string & name) {
    for (const char * end : { "norm.weight", ".bias", ".scale", ".ssm_a", ".ssm_conv1d.weight" }) {
        if (ends_with(name, end)) {
            return true;
        }
    }
    return false;
}

// Checks that operations support a tensor's type. llama.cpp does not check it: a wrong type fails an assertion in the
// middle of a graph, or crashes.
void inspect_type(const ggml_tensor * tensor) {
    const std::string name = tensor->name;
    const std::string type = ggml_type_name(tensor->type);
    if (is_elementwise(name)) {
        if (tensor->type != GGML_TYPE_F32) {
            throw pymtp_file_error("tensor '" + name + "' is of type " + type + ", it must be f32");
        }
    } else if (!pymtp_is_weight_type(tensor->type)) {
        throw pymtp_file_error("tensor '" + name + "' is of type " + type + ", which is no type for weights");
    }
}

// Throws when a tensor is missing that llama.cpp treats as optional, but uses unconditionally.
void inspect_presence(const std::set<std::string> & names, const pymtp_file_info & info) {
    const bool is_next = std::strcmp(info.architecture, "qwen3next") == 0;
    for (int32_t i = 0; i < info.n_layer; ++i) {
        const std::string block = "blk." + std::to_string(i) + ".";
        const bool recurrent = names.count(block + "ssm_conv1d.weight");
        // early files of qwen3next have the matrix ssm_in instead of attn_qkv and attn_gate
        const bool joined = is_next && names.count(block + "ssm_in.weight") && !names.count(block + "attn_qkv.weight");
        const bool two    = recurrent && !joined;
        for (const char * name : { "attn_norm.weight", two ? "attn_qkv.weight" : nullptr,
                two ? "attn_gate.weight" : nullptr }) {
            if (name && !names.count(block + name)) {
                throw pymtp_file_error("tensor '" + block + name + "' is missing");
            }
        }
    }
}

} // namespace

bool pymtp_is_weight_type(ggml_type type) {
    return ggml_get_type_traits_cpu(type)->vec_dot && (type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float);
}

void pymtp_inspect_extents(const pymtp_gguf_file & part, const std::string & what) {
    const gguf_context * gguf = part.gguf();
    const size_t bytes = llama_file(part.path.c_str(), "rb").size();
    const size_t begin = gguf_get_data_offset(gguf);
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
        const size_t offset = gguf_get_tensor_offset(gguf, i);
        const size_t left = bytes < begin || bytes - begin < offset ? 0 : bytes - begin - offset;
        if (left < gguf_get_tensor_size(gguf, i)) {
            throw pymtp_file_error(
                what + " is cut off at " + std::to_string(bytes) + " bytes, within or before tensor '" +
                gguf_get_tensor_name(gguf, i) + "'");
        }
    }
}

// Checks type and place of each tensor, and fills in info.weight_type. Returns the names of all tensors.
static std::set<std::string> inspect_each(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info) {
    std::map<ggml_type, size_t> bytes;
    std::set<std::string> names;
    for (const pymtp_gguf_file & part : parts) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            if (ggml_nelements(t) == 0) {
                throw pymtp_file_error("tensor '" + std::string(t->name) + "' is empty");
            }
            inspect_type(t);
            names.insert(t->name);
            bytes[t->type] += ggml_nbytes(t);
        }
        pymtp_inspect_extents(part, parts.size() > 1 ? part.path : "the file");
    }
    const auto most = std::max_element(bytes.begin(), bytes.end(),
            [](const auto & a, const auto & b) { return a.second < b.second; });
    if (most == bytes.end()) {
        throw pymtp_file_error("no tensors in the file");
    }
    std::strncpy(info.weight_type, ggml_type_name(most->first), sizeof(info.weight_type) - 1);
    return names;
}

void pymtp_inspect_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info) {
    inspect_presence(inspect_each(parts, info), info);
}

void pymtp_inspect_head_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info) {
    inspect_each(parts, info);
}
