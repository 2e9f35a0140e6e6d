// Validates the keys that describe the architecture, and that they are consistent with each other.
#include "inspect.h"

#include "llama-hparams.h"

#include <cmath>

namespace {

class arch_keys {
public:
    arch_keys(const pymtp_gguf_file & file, const std::string & arch) : file(file), arch(arch) {}

    std::string name(const char * key) const { return arch + "." + key; }

    // Returns the value of a key, or `fallback` if the file does not have the key. Throws when the value is not from
    // min to max.
    uint32_t number(const char * key, uint32_t min, uint32_t max,
            std::optional<uint32_t> fallback = std::nullopt) const {
        const std::optional<uint32_t> value = file.u32(name(key));
        if (!value && fallback) {
            return *fallback;
        }
        if (!value) {
            throw pymtp_file_error("no " + name(key) + " in the file");
        }
        return checked(key, *value, min, max);
    }

    // Returns the value of a key like number(), for a key that may have an array with a value for each block. Throws
    // when these values differ, because llama.cpp sizes the tensors of all blocks by the first value.
    uint32_t same_in_all_blocks(const char * key, uint32_t n_block, uint32_t min, uint32_t max,
            std::optional<uint32_t> fallback = std::nullopt) const {
        const int64_t id = file.find(name(key));
        if (id < 0 || gguf_get_kv_type(file.gguf(), id) != GGUF_TYPE_ARRAY) {
            return number(key, min, max, fallback);
        }
        const gguf_type type = gguf_get_arr_type(file.gguf(), id);
        if ((type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) || gguf_get_arr_n(file.gguf(), id) != n_block) {
            throw pymtp_file_error(name(key) + " must be one number, or " + std::to_string(n_block) +
                    " of 32 bits, one for each block");
        }
        const auto * values = static_cast<const uint32_t *>(gguf_get_arr_data(file.gguf(), id));
        for (uint32_t i = 1; i < n_block; ++i) {
            if (values[i] != values[0]) {
                throw pymtp_file_error(name(key) + " must be the same for all blocks, block " + std::to_string(i) +
                        " differs");
            }
        }
        return checked(key, values[0], min, max);
    }

    void require(bool right, const std::string & what) const {
        if (!right) {
            throw pymtp_file_error(arch + ": " + what);
        }
    }

private:
    const pymtp_gguf_file & file;
    const std::string     & arch;

    uint32_t checked(const char * key, uint32_t value, uint32_t min, uint32_t max) const {
        if (value < min || value > max) {
            throw pymtp_file_error(name(key) + " is " + std::to_string(value) + ", it must be " + std::to_string(min) +
                    " to " + std::to_string(max));
        }
        return value;
    }
};

// Upper limit for widths. It is larger than the widths of any model, and so small that the product of two widths fits
// in 64 bits.
constexpr uint32_t max_width = 1u << 24;

// Returns whether llama.cpp treats a block as recurrent. It decides by a key with a value for each block or, without
// that key, by the interval between attention blocks.
bool is_recurrent(const pymtp_gguf_file & file, const arch_keys & keys, uint32_t block, uint32_t n_layer,
        uint32_t n_block) {
    const std::string name = keys.name("attention.recurrent_layers");
    const int64_t id = file.find(name);
    if (id < 0) {
        return block < n_layer && (block + 1) % keys.number("full_attention_interval", 1, max_width, 4) != 0;
    }
    const gguf_type type = gguf_get_kv_type(file.gguf(), id) == GGUF_TYPE_ARRAY ? gguf_get_arr_type(file.gguf(), id)
            : GGUF_TYPE_COUNT;
    if ((type != GGUF_TYPE_BOOL && type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) ||
            gguf_get_arr_n(file.gguf(), id) != n_block) {
        throw pymtp_file_error(name + " must say of each of the " + std::to_string(n_block) +
                " blocks whether it is recurrent");
    }
    const void * values = gguf_get_arr_data(file.gguf(), id);
    return type == GGUF_TYPE_BOOL ? static_cast<const int8_t *>(values)[block]
            : static_cast<const int32_t *>(values)[block];
}

// Checks the keys about blocks. Returns the number of all blocks, those of the trunk and of the head.
uint32_t inspect_blocks(const pymtp_gguf_file & file, const arch_keys & keys, const pymtp_head_found & head,
        pymtp_file_info & info) {
    const uint32_t n_block = keys.number("block_count", 1, LLAMA_MAX_LAYERS);
    const uint32_t n_mtp   = keys.number("nextn_predict_layers", 0, n_block, 0);
    if (n_mtp > 1 || n_mtp >= n_block) {
        throw pymtp_file_error(keys.name("nextn_predict_layers") + " is " + std::to_string(n_mtp) +
                ", pymtp runs heads of one block");
    }
    info.n_layer     = head.n_trunk;
    info.n_layer_mtp = head.n_layer;

    uint32_t n_recurrent = 0; // number of recurrent blocks in the trunk
    for (uint32_t i = 0; i < n_block; ++i) {
        const bool recurrent = is_recurrent(file, keys, i, info.n_layer, n_block);
        n_recurrent += i < (uint32_t) info.n_layer && recurrent;
        keys.require(i < (uint32_t) info.n_layer || !recurrent,
                "block " + std::to_string(i) + ", the head, is recurrent; a head has attention");
    }
    keys.require(n_recurrent > 0 && n_recurrent < (uint32_t) info.n_layer, "of " + std::to_string(info.n_layer) +
        " blocks " + std::to_string(n_recurrent) + " are recurrent; a model must have recurrent blocks and others");
    return n_block;
}

// Checks rope.dimension_sections, which says how many dimensions M-RoPE rotates by each of a token's four positions.
void inspect_rope_sections(const pymtp_gguf_file & file, const arch_keys & keys, uint32_t n_rot) {
    const int64_t id = file.find(keys.name("rope.dimension_sections"));
    const bool found = id >= 0 && gguf_get_kv_type(file.gguf(), id) == GGUF_TYPE_ARRAY &&
            gguf_get_arr_n(file.gguf(), id) == 4 &&
            (gguf_get_arr_type(file.gguf(), id) == GGUF_TYPE_INT32 ||
             gguf_get_arr_type(file.gguf(), id) == GGUF_TYPE_UINT32);
    keys.require(found, "rope.dimension_sections must be 4 numbers of 32 bits");
    const auto * sections = static_cast<const int32_t *>(gguf_get_arr_data(file.gguf(), id));
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) {
        keys.require(sections[i] >= 0, "rope.dimension_sections must not be negative");
        sum += sections[i];
    }
    keys.require(sum > sections[3] && sum <= n_rot, "rope.dimension_sections add up to " + std::to_string(sum) +
        ", they must to at most rope.dimension_count = " + std::to_string(n_rot) +
        ", and one of the first three must not be 0");
}

void inspect_attention(const pymtp_gguf_file & file, const arch_keys & keys, bool sections, uint32_t n_block,
        uint32_t n_embd) {
    const uint32_t n_head    = keys.same_in_all_blocks("attention.head_count",    n_block, 1, max_width);
    const uint32_t n_head_kv = keys.same_in_all_blocks("attention.head_count_kv", n_block, 1, n_head, n_head);
    keys.require(n_head % n_head_kv == 0, "attention.head_count is " + std::to_string(n_head) +
        ", it must be a multiple of attention.head_count_kv = " + std::to_string(n_head_kv));

    const uint32_t n_key   = keys.number("attention.key_length",   1, max_width, n_embd / n_head);
    const uint32_t n_value = keys.number("attention.value_length", 1, max_width, n_embd / n_head);
    keys.require(n_key == n_value && n_key > 0, "attention.key_length is " + std::to_string(n_key) +
        " and attention.value_length " + std::to_string(n_value) + ", they must be equal");

    const uint32_t n_rot = keys.number("rope.dimension_count", 2, n_key, n_key);
    keys.require(n_rot % 2 == 0, "rope.dimension_count is " + std::to_string(n_rot) + ", it must be even");
    if (sections) {
        inspect_rope_sections(file, keys, n_rot);
    }
}

void inspect_delta_net(const arch_keys & keys) {
    keys.number("ssm.conv_kernel", 2, 1024);
    const uint64_t n_state = keys.number("ssm.state_size",     1, max_width);
    const uint64_t n_group = keys.number("ssm.group_count",    1, max_width);
    const uint64_t n_rank  = keys.number("ssm.time_step_rank", 1, max_width);
    const uint64_t n_inner = keys.number("ssm.inner_size",     1, max_width);
    keys.require(n_inner == n_state * n_rank, "ssm.inner_size is " + std::to_string(n_inner) +
        ", it must be ssm.state_size * ssm.time_step_rank = " + std::to_string(n_state * n_rank));
    keys.require(n_rank % n_group == 0, "ssm.time_step_rank is " + std::to_string(n_rank) +
        ", it must be a multiple of ssm.group_count = " + std::to_string(n_group));
}

void inspect_ffn(const arch_keys & keys, bool experts, uint32_t n_block) {
    if (!experts) {
        keys.same_in_all_blocks("feed_forward_length", n_block, 1, max_width);
        keys.number("expert_count", 0, 0, 0);
        keys.same_in_all_blocks("expert_used_count", n_block, 0, 0, 0);
        return;
    }
    const uint32_t n_expert = keys.number("expert_count", 1, LLAMA_MAX_EXPERTS);
    keys.same_in_all_blocks("expert_used_count", n_block, 1, n_expert);
    keys.number("expert_group_count", 0, 1, 0);
    // without expert_shared_feed_forward_length, llama.cpp uses feed_forward_length
    const uint32_t n_ff     = keys.same_in_all_blocks("feed_forward_length",        n_block, 0, max_width, 0);
    const uint32_t n_ff_exp = keys.same_in_all_blocks("expert_feed_forward_length", n_block, 0, max_width, 0);
    keys.number("expert_shared_feed_forward_length", n_ff ? 0 : 1, max_width, n_ff);
    keys.require(n_ff > 0 || n_ff_exp > 0, "expert_feed_forward_length must not be 0");
}

// Refuses settings that models of these architectures never have, and that our code does not support.
void inspect_others(const pymtp_gguf_file & file, const arch_keys & keys, uint32_t n_embd) {
    keys.number("embedding_length_out", n_embd, n_embd, n_embd);
    keys.number("pooling_type", 0, 0, 0);
    keys.require(file.flag(keys.name("attention.causal")).value_or(true), "attention.causal is false, it must be true");
    const std::string scaling = file.string(keys.name("rope.scaling.type")).value_or("none");
    keys.require(scaling == "none" || scaling == "linear" || scaling == "yarn" || scaling == "longrope",
        "rope.scaling.type is '" + scaling + "', llama.cpp knows none, linear, yarn and longrope");

    const gguf_context * gguf = file.gguf();
    for (int64_t i = 0; i < gguf_get_n_kv(gguf); ++i) {
        const std::string name = gguf_get_key(gguf, i);
        if (name.rfind(keys.name(""), 0) == 0 && gguf_get_kv_type(gguf, i) == GGUF_TYPE_FLOAT32 &&
                !std::isfinite(gguf_get_val_f32(gguf, i))) {
            throw pymtp_file_error(name + " is not a finite number");
        }
    }
    const int64_t eps = file.find(keys.name("attention.layer_norm_rms_epsilon"));
    keys.require(eps >= 0 && gguf_get_kv_type(gguf, eps) == GGUF_TYPE_FLOAT32 && gguf_get_val_f32(gguf, eps) >= 0,
        "attention.layer_norm_rms_epsilon must be a number of type f32, at least 0");
}

} // namespace

void pymtp_inspect_shape(const pymtp_gguf_file & file, const std::string & arch, const pymtp_head_found & head,
        pymtp_file_info & info) {
    const arch_keys keys(file, arch);
    const uint32_t n_block = inspect_blocks(file, keys, head, info);
    const uint32_t n_embd  = keys.number("embedding_length", 1, max_width);
    const bool next        = arch == "qwen3next"; // this architecture has experts, but no M-RoPE
    inspect_attention(file, keys, !next, n_block, n_embd);
    inspect_delta_net(keys);
    inspect_ffn(keys, next || arch == "qwen35moe", n_block);
    inspect_others(file, keys, n_embd);
    info.n_embd      = n_embd;
    info.n_ctx_train = keys.number("context_length", 1, INT32_MAX);
}
