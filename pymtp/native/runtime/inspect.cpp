// Inspects a GGUF before llama.cpp builds a model from it.
#include "inspect.h"

#include "api_guard.h"
#include "head_files.h"

#include <cstring>

namespace {

int32_t tap_of(const pymtp_gguf_file & file, const std::string & arch) {
    const std::string tap = file.string(arch + ".nextn_tap").value_or("");
    if (!tap.empty() && tap != "post_norm" && tap != "pre_norm") {
        throw pymtp_file_error(arch + ".nextn_tap is '" + tap + "', known are post_norm and pre_norm");
    }
    return tap == "post_norm" ? PYMTP_TAP_POST_NORM : tap == "pre_norm" ? PYMTP_TAP_PRE_NORM : -1;
}

void inspect(const char * path, const char * head_path, pymtp_file_info & info) {
    info = {};
    const std::vector<pymtp_gguf_file> parts = pymtp_open_parts(path);
    const pymtp_gguf_file & file = parts[0];
    if (file.string("general.type").value_or("") == "adapter") {
        throw pymtp_file_error("it is a LoRA adapter, which goes with a model: lora, on command lines --lora");
    }
    const std::string arch = file.string("general.architecture").value_or("");
    std::strncpy(info.architecture, arch.c_str(), sizeof(info.architecture) - 1);
    if (arch == "clip") {
        throw pymtp_file_error("it is a projector, which goes with a model: mmproj, on command lines --mmproj");
    }
    if (arch != "qwen35" && arch != "qwen35moe" && arch != "qwen3next") {
        throw pymtp_file_error("architecture is '" + arch + "', pymtp runs qwen35, qwen35moe and qwen3next");
    }
    if (pymtp_is_head_alone(parts)) {
        throw pymtp_file_error("this file is a head and no model: give the model's file, and this one as head, "
            "on command lines --head");
    }
    const pymtp_head_found head = pymtp_inspect_head(parts);
    std::strncpy(info.head_absent, head.absent.c_str(), sizeof(info.head_absent) - 1);
    pymtp_inspect_shape(file, arch, head, info);
    if (!head.refused.empty()) {
        throw pymtp_file_error(head.refused);
    }
    pymtp_inspect_vocab(file);
    pymtp_inspect_tensors(parts, info);
    info.tap = tap_of(file, arch);

    if (head_path) {
        const pymtp_head_files given = pymtp_find_head(parts, head_path);
        info.n_layer        = given.block;
        info.n_layer_mtp    = 1;
        info.head_absent[0] = '\0';
        info.tap            = tap_of(pymtp_gguf_file(given.paths[0]), arch);
    }
}

} // namespace

int pymtp_inspect(const char * path, const char * head, pymtp_file_info * info) {
    return pymtp_guarded<int>(PYMTP_INVALID, [&] {
        inspect(path, head, *info);
        return PYMTP_OK;
    });
}

int32_t pymtp_file_parts(const char * path, pymtp_file_part * parts, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        const std::vector<pymtp_gguf_file> files = pymtp_open_parts(path);
        for (size_t i = 0; i < files.size() && i < (size_t) n_max; ++i) {
            if (files[i].path.size() >= sizeof(parts[i].path)) {
                throw pymtp_file_error("its path is too long");
            }
            std::strcpy(parts[i].path, files[i].path.c_str());
            parts[i].header_bytes = gguf_get_data_offset(files[i].gguf());
        }
        return (int32_t) files.size();
    });
}
