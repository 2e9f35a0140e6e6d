// Validates the head: checks whether the tensors of the head that the keys announce are in the block where llama.cpp
// looks for them.
#include "inspect.h"

#include "llama-hparams.h"

namespace {

bool starts_with(const std::string & text, const std::string & begin) {
    return text.compare(0, begin.size(), begin) == 0;
}

// Returns whether a tensor belongs to a head but has a name that llama.cpp does not know: a name of the original
// checkpoint (such as mtp.fc.weight), or the token map of a head that drafts over part of the vocabulary.
bool has_unknown_head_name(const std::string & name) {
    const size_t dot       = name.rfind('.');
    const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
    return starts_with(name, "mtp.") || name.find(".mtp.") != std::string::npos || starts_with(name, "nextn.") ||
        name == "d2t" || last == "d2t" || name == "d2t.weight";
}

// Returns the number of the block that a tensor belongs to, or -1 if it belongs to no block.
int64_t block_of(const std::string & name) {
    const size_t dot = starts_with(name, "blk.") ? name.find('.', 4) : std::string::npos;
    if (dot == std::string::npos || dot == 4 || dot > 12 || name.find_first_not_of("0123456789", 4) != dot) {
        return -1;
    }
    return std::stol(name.substr(4, dot - 4));
}

std::string and_more(size_t n) {
    return n > 1 ? " and " + std::to_string(n - 1) + " more" : "";
}

} // namespace

pymtp_head_found pymtp_inspect_head(const std::vector<pymtp_gguf_file> & parts) {
    const pymtp_gguf_file & file = parts[0];
    const std::string arch       = file.string("general.architecture").value_or("");
    const std::string key        = arch + ".nextn_predict_layers";
    const uint32_t n_block       = file.u32(arch + ".block_count").value_or(0);
    const uint32_t n_announced   = file.u32(key).value_or(0);
    if (n_block == 0 || n_block > LLAMA_MAX_LAYERS || n_announced > 1 || n_announced >= n_block) {
        return {(int32_t) n_announced, 0, "", ""}; // pymtp_inspect_shape will refuse these keys
    }
    const int32_t n_trunk = n_block - n_announced;
    const auto refused = [=](const std::string & why) {
        return pymtp_head_found{(int32_t) n_announced, n_trunk, "", why};
    };
    const int64_t     last  = n_block - 1;
    const std::string block = "blk." + std::to_string(last) + ".";

    std::vector<std::string> unknown;   // tensors of a head with names that llama.cpp does not know
    std::vector<std::string> elsewhere; // tensors of a head in another block than the last
    bool has_block = false, has_nextn = false, is_recurrent = false;
    for (const pymtp_gguf_file & part : parts) {
        for (ggml_tensor * t = ggml_get_first_tensor(part.tensors()); t; t = ggml_get_next_tensor(part.tensors(), t)) {
            const std::string name = t->name;
            const bool is_nextn = name.find(".nextn.") != std::string::npos;
            if (has_unknown_head_name(name)) {
                unknown.push_back(name);
            } else if (is_nextn && block_of(name) != last) {
                elsewhere.push_back(name);
            }
            if (starts_with(name, block)) {
                has_block = true;
                has_nextn    |= is_nextn;
                is_recurrent |= starts_with(name, block + "ssm_");
            }
        }
    }
    if (!unknown.empty()) {
        return refused("tensor '" + unknown[0] + "'" + and_more(unknown.size()) +
                ": a head under names that llama.cpp does not know; it "
            "knows " + block + "nextn.eh_proj.weight and the like, as its convert_hf_to_gguf.py writes them");
    }
    if (!elsewhere.empty()) {
        return refused("tensor '" + elsewhere[0] + "'" + and_more(elsewhere.size()) +
                ": a head must be the last block, and with " + arch + ".block_count = " + std::to_string(n_block) +
                " that is block " + std::to_string(last));
    }
    if (has_nextn && n_announced == 0) {
        return refused("the file has the tensors of a head (" + block +
                "nextn.*) and does not announce it by the name that llama.cpp "
            "knows: " + key + " must be 1");
    }
    if (n_announced == 0 || has_nextn) {
        return {(int32_t) n_announced, n_trunk, "", ""};
    }
    const std::string announced = key + " announces a head in block " + std::to_string(last) + ", ";
    if (!has_block) {
        return {0, n_trunk, announced + "of which the file has no tensor", ""};
    }
    // Every interval-th block of a trunk is an attention block, and the last block of a trunk is one. So a last block
    // that is recurrent, or whose number is a multiple of the interval, is part of the trunk, not a head.
    const uint32_t interval = file.u32(arch + ".full_attention_interval").value_or(4);
    if (is_recurrent || (interval > 0 && n_block % interval == 0)) {
        return {0, (int32_t) n_block,
                announced + "which is one of the trunk's: it has no tensor of the kind " + block +
                "nextn.eh_proj.weight", ""};
    }
    return {0, n_trunk,
            announced + "which has no tensor of the kind " + block + "nextn.eh_proj.weight: the block is not used", ""};
}
