// Reads the metadata of a GGUF file: its keys, and the names, types and shapes of its tensors, but not the tensors'
// data.
#pragma once

#include "ggml.h"
#include "gguf.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Thrown when a file is refused; the message says why.
struct pymtp_file_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class pymtp_gguf_file {
public:
    // throws pymtp_file_error when the file is not a readable GGUF
    explicit pymtp_gguf_file(const std::string & path);

    bool has(const std::string & key) const { return find(key) >= 0; }

    // return the value of a key, or nullopt if the file does not have the key; throw pymtp_file_error if the value is
    // of another type
    std::optional<uint32_t>    u32   (const std::string & key) const;
    std::optional<uint16_t>    u16   (const std::string & key) const;
    std::optional<bool>        flag  (const std::string & key) const;
    std::optional<std::string> string(const std::string & key) const;

    // find returns the index of a key as in gguf.h, -1 if the file does not have it; gguf returns the context that the
    // functions of gguf.h take
    int64_t              find(const std::string & key) const { return gguf_find_key(keys.get(), key.c_str()); }
    const gguf_context * gguf() const { return keys.get(); }

    // returns the ggml context that holds all tensors of the file, without their data
    ggml_context * tensors() const { return shapes.get(); }

    const std::string path;

private:
    struct keys_deleter   { void operator()(gguf_context * ctx) const { gguf_free(ctx); } };
    struct shapes_deleter { void operator()(ggml_context * ctx) const { ggml_free(ctx); } };

    std::unique_ptr<gguf_context, keys_deleter>   keys;
    std::unique_ptr<ggml_context, shapes_deleter> shapes;

    int64_t find(const std::string & key, gguf_type type) const;
};

// Opens all parts of the split file whose first part is at `path`, or the one file there if it is not split. Throws
// pymtp_file_error when a part is missing.
std::vector<pymtp_gguf_file> pymtp_open_parts(const std::string & path);
