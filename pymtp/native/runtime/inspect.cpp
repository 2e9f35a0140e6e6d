// Reads what a GGUF says of itself before llama.cpp builds a model from it.
#include "inspect.h"

#include "border.h"

#include "llama.h"

#include <cstring>

namespace {

std::string path_of_part(const std::string & path, int32_t part, int32_t n_parts) {
    std::string prefix(path.size() + 1, '\0');
    if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, n_parts) == 0) {
        throw pymtp_refused("this is part 1 of " + std::to_string(n_parts) + ", and its name must end like -00001-of-00002.gguf");
    }
    std::string name(path.size() + 64, '\0');
    name.resize(llama_split_path(name.data(), name.size(), prefix.c_str(), part, n_parts));
    return name;
}

std::vector<pymtp_gguf_file> parts_of(const std::string & path) {
    std::vector<pymtp_gguf_file> parts;
    parts.emplace_back(path);
    const int32_t number = parts[0].u16("split.no").value_or(0);
    if (number != 0) {
        throw pymtp_refused("this is part " + std::to_string(number + 1) + " of a split model, name the first part");
    }
    const int32_t n_parts = parts[0].u16("split.count").value_or(0);
    for (int32_t i = 1; i < n_parts; ++i) {
        const std::string name = path_of_part(path, i, n_parts);
        try {
            parts.emplace_back(name);
            if (parts[i].u16("split.no") != i) {
                throw pymtp_refused("its split.no must be " + std::to_string(i));
            }
        } catch (const pymtp_refused & refused) {
            throw pymtp_refused("part " + std::to_string(i + 1) + " of " + std::to_string(n_parts) + ", " + name + ": " + refused.what());
        }
    }
    return parts;
}

void inspect(const char * path, pymtp_file_info & info) {
    info = {};
    const std::vector<pymtp_gguf_file> parts = parts_of(path);
    const pymtp_gguf_file & file = parts[0];
    const std::string arch = file.string("general.architecture").value_or("");
    std::strncpy(info.architecture, arch.c_str(), sizeof(info.architecture) - 1);
    if (arch != "qwen35" && arch != "qwen35moe") {
        throw pymtp_refused("architecture is '" + arch + "', pymtp runs qwen35 and qwen35moe");
    }
    pymtp_inspect_shape(file, arch, info);
    pymtp_inspect_vocab(file);
    pymtp_inspect_tensors(parts, info);

    const std::string tap = file.string(arch + ".nextn_tap").value_or("");
    info.tap = tap == "post_norm" ? PYMTP_TAP_POST_NORM : tap == "pre_norm" ? PYMTP_TAP_PRE_NORM : -1;
    if (!tap.empty() && info.tap < 0) {
        throw pymtp_refused(arch + ".nextn_tap is '" + tap + "', known are post_norm and pre_norm");
    }
}

} // namespace

int pymtp_inspect(const char * path, pymtp_file_info * info) {
    return pymtp_guarded<int>(PYMTP_INVALID, [&] {
        inspect(path, *info);
        return PYMTP_OK;
    });
}
