// Validates the keys of the tokenizer.
#include "inspect.h"

#include <unordered_map>

void pymtp_inspect_vocab(const pymtp_gguf_file & file) {
    const std::string model = file.string("tokenizer.ggml.model").value_or("");
    if (model != "gpt2") {
        throw pymtp_file_error("tokenizer.ggml.model is '" + model + "', pymtp's models have gpt2");
    }
    const gguf_context * gguf = file.gguf();
    const int64_t id = file.find("tokenizer.ggml.tokens");
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(gguf, id) != GGUF_TYPE_STRING ||
            gguf_get_arr_n(gguf, id) == 0) {
        throw pymtp_file_error("tokenizer.ggml.tokens must be an array of strings, one for each token");
    }

    // llama.cpp gives empty tokens this name
    const size_t n = gguf_get_arr_n(gguf, id);
    std::unordered_map<std::string, size_t> seen;
    seen.reserve(n);
    for (size_t i = 0; i < n; ++i) {
        std::string text = gguf_get_arr_str(gguf, id, i);
        if (text.empty()) {
            text = "[EMPTY_" + std::to_string(i) + "]";
        }
        const auto [first, is_new] = seen.emplace(std::move(text), i);
        if (!is_new) {
            throw pymtp_file_error("tokens " + std::to_string(first->second) + " and " + std::to_string(i) +
                " of tokenizer.ggml.tokens are both '" + first->first + "', each must be there once");
        }
    }
}
