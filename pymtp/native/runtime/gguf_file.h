// What a GGUF file says of itself: keys and the tensors' names, types and shapes, no data.
#pragma once

#include "ggml.h"
#include "gguf.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// A file that is refused, and why.
struct pymtp_refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class pymtp_gguf_file {
public:
    // throws pymtp_refused where the file is no GGUF that can be read
    explicit pymtp_gguf_file(const std::string & path);

    bool has(const std::string & key) const { return find(key) >= 0; }

    // the value of a key, if the file has it; throws pymtp_refused where it is of another type
    std::optional<uint32_t>    u32   (const std::string & key) const;
    std::optional<uint16_t>    u16   (const std::string & key) const;
    std::optional<bool>        flag  (const std::string & key) const;
    std::optional<std::string> string(const std::string & key) const;

    // gguf.h's number of a key, -1 without, and its functions' first argument
    int64_t              find(const std::string & key) const { return gguf_find_key(keys.get(), key.c_str()); }
    const gguf_context * gguf() const { return keys.get(); }

    // the first tensor; ggml_get_next_tensor has the others
    ggml_context * tensors() const { return shapes.get(); }

    const std::string path;

private:
    struct keys_deleter   { void operator()(gguf_context * ctx) const { gguf_free(ctx); } };
    struct shapes_deleter { void operator()(ggml_context * ctx) const { ggml_free(ctx); } };

    std::unique_ptr<gguf_context, keys_deleter>   keys;
    std::unique_ptr<ggml_context, shapes_deleter> shapes;

    int64_t find(const std::string & key, gguf_type type) const;
};

// The file, or all parts of a split model, of which path is the first. Throws pymtp_refused where one is missing.
std::vector<pymtp_gguf_file> pymtp_parts_of(const std::string & path);
