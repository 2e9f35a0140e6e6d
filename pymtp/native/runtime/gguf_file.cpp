#include "gguf_file.h"

#include "llama.h"

pymtp_gguf_file::pymtp_gguf_file(const std::string & path) : path(path) {
    ggml_context * ctx = nullptr;
    keys.reset(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx }));
    shapes.reset(ctx);
    if (!keys) {
        throw pymtp_file_error("not a readable GGUF file");
    }
}

int64_t pymtp_gguf_file::find(const std::string & key, gguf_type type) const {
    const int64_t id = find(key);
    if (id >= 0 && gguf_get_kv_type(keys.get(), id) != type) {
        throw pymtp_file_error(key + " is of type " + gguf_type_name(gguf_get_kv_type(keys.get(), id)) +
                ", it must be " + gguf_type_name(type));
    }
    return id;
}

std::optional<uint32_t> pymtp_gguf_file::u32(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_UINT32);
    return id < 0 ? std::nullopt : std::optional(gguf_get_val_u32(keys.get(), id));
}

std::optional<uint16_t> pymtp_gguf_file::u16(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_UINT16);
    return id < 0 ? std::nullopt : std::optional(gguf_get_val_u16(keys.get(), id));
}

std::optional<bool> pymtp_gguf_file::flag(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_BOOL);
    return id < 0 ? std::nullopt : std::optional(gguf_get_val_bool(keys.get(), id));
}

std::optional<std::string> pymtp_gguf_file::string(const std::string & key) const {
    const int64_t id = find(key, GGUF_TYPE_STRING);
    return id < 0 ? std::nullopt : std::optional<std::string>(gguf_get_val_str(keys.get(), id));
}

static std::string path_of_part(const std::string & path, int32_t part, int32_t n_parts) {
    std::string prefix(path.size() + 1, '\0');
    if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, n_parts) == 0) {
        throw pymtp_file_error("this is part 1 of " + std::to_string(n_parts) +
                ", and its name must end like -00001-of-00002.gguf");
    }
    std::string name(path.size() + 64, '\0');
    name.resize(llama_split_path(name.data(), name.size(), prefix.c_str(), part, n_parts));
    return name;
}

std::vector<pymtp_gguf_file> pymtp_open_parts(const std::string & path) {
    std::vector<pymtp_gguf_file> parts;
    parts.emplace_back(path);
    const int32_t number = parts[0].u16("split.no").value_or(0);
    if (number != 0) {
        throw pymtp_file_error("this is part " + std::to_string(number + 1) + " of a split model, name the first part");
    }
    const int32_t n_parts = parts[0].u16("split.count").value_or(0);
    for (int32_t i = 1; i < n_parts; ++i) {
        const std::string name = path_of_part(path, i, n_parts);
        try {
            parts.emplace_back(name);
            if (parts[i].u16("split.no") != i) {
                throw pymtp_file_error("its split.no must be " + std::to_string(i));
            }
        } catch (const pymtp_file_error & refused) {
            throw pymtp_file_error("part " + std::to_string(i + 1) + " of " + std::to_string(n_parts) + ", " + name +
                    ": " + refused.what());
        }
    }
    return parts;
}
