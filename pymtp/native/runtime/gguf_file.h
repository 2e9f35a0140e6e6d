// The metadata of a GGUF file: its keys, and the names, types and shapes of its tensors, without data.
#pragma once

#include "ggml.h"
#include "gguf.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Says why a file was refused.
struct pymtp_file_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class pymtp_gguf_file {
public:
    // throws pymtp_file_error when the file is not a readable GGUF
    explicit pymtp_gguf_file(const std::string & path);

    bool has(const std::string & key) const { return find(key) >= 0; }

    // return the value of a key if the file has it; throw pymtp_file_error when its type differs
    std::optional<uint32_t>    u32   (const std::string & key) const;
    std::optional<uint16_t>    u16   (const std::string & key) const;
    std::optional<bool>        flag  (const std::string & key) const;
    std::optional<std::string> string(const std::string & key) const;

    // return gguf.h's index of a key (-1 if missing), and the context that its functions take
    int64_t              find(const std::string & key) const { return gguf_find_key(keys.get(), key.c_str()); }
    const gguf_context * gguf() const { return keys.get(); }

    // returns the context of all tensors
    ggml_context * tensors() const { return shapes.get(); }

    const std::string path;

private:
    struct keys_deleter   { void operator()(gguf_context * ctx) const { gguf_free(ctx); } };
    struct shapes_deleter { void operator()(ggml_context * ctx) const { ggml_free(ctx); } };

    std::unique_ptr<gguf_context, keys_deleter>   keys;
    std::unique_ptr<ggml_context, shapes_deleter> shapes;

    int64_t find(const std::string & key, gguf_type type) const;
};

// Opens the file, or all parts of a split model whose first part is path. Throws pymtp_file_error when a part is
// missing.
std::vector<pymtp_gguf_file> pymtp_open_parts(const std::string & path);
