#include "gguf_file.h"

pymtp_gguf_file::pymtp_gguf_file(const std::string & path) {
    ggml_context * ctx = nullptr;
    keys.reset(gguf_init_from_file(path.c_str(), { /*.no_alloc =*/ true, /*.ctx =*/ &ctx }));
    shapes.reset(ctx);
    if (!keys) {
        throw pymtp_refused("not a readable GGUF file");
    }
}

int64_t pymtp_gguf_file::find(const std::string & key, gguf_type type) const {
    const int64_t id = find(key);
    if (id >= 0 && gguf_get_kv_type(keys.get(), id) != type) {
        throw pymtp_refused(key + " is of type " + gguf_type_name(gguf_get_kv_type(keys.get(), id)) + ", it must be " + gguf_type_name(type));
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
