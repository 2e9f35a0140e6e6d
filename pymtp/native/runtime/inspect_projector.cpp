// Validates the file of a projector before llama.cpp loads it.
#include "inspect_projector.h"

#include "inspect.h"

#include <cmath>
#include <set>

namespace {

constexpr uint32_t max_width = 1u << 16; // largest width of a layer
constexpr uint32_t max_block = 1u << 10;

void require(bool right, const std::string & otherwise) {
    if (!right) {
        throw pymtp_file_error(otherwise);
    }
}

// Returns the value of a key. Throws when it is not from min to max.
uint32_t number(const pymtp_gguf_file & file, const std::string & key, uint32_t min, uint32_t max,
        std::optional<uint32_t> fallback = std::nullopt) {
    const std::optional<uint32_t> value = file.u32(key);
    require(value || fallback, "no " + key + " in the file");
    const uint32_t result = value.value_or(fallback.value_or(0));
    require(result >= min && result <= max, key + " is " + std::to_string(result) + ", it must be " +
            std::to_string(min) + " to " + std::to_string(max));
    return result;
}

// Checks that a key has n positive finite numbers: as one value if n is 0, else as an array.
void inspect_floats(const pymtp_gguf_file & file, const std::string & key, size_t n, float min) {
    const int64_t id = file.find(key);
    require(id >= 0, "no " + key + " in the file");
    const gguf_type type = gguf_get_kv_type(file.gguf(), id);
    const float * values = nullptr;
    float         single = 0.0f;
    if (n == 0) {
        require(type == GGUF_TYPE_FLOAT32, key + " must be a number of type f32");
        single = gguf_get_val_f32(file.gguf(), id);
        values = &single;
        n      = 1;
    } else {
        require(type == GGUF_TYPE_ARRAY && gguf_get_arr_type(file.gguf(), id) == GGUF_TYPE_FLOAT32 &&
                gguf_get_arr_n(file.gguf(), id) >= n, key + " must be " + std::to_string(n) + " numbers of type f32");
        values = static_cast<const float *>(gguf_get_arr_data(file.gguf(), id));
    }
    for (size_t i = 0; i < n; ++i) {
        require(std::isfinite(values[i]) && values[i] >= min && values[i] <= 1e6f,
                key + " is " + std::to_string(values[i]));
    }
}

class tensors {
public:
    explicit tensors(const pymtp_gguf_file & file) : file(file) {}

    // Checks the weights of a matrix, which may be of any type, and its bias.
    void linear(const std::string & name, int64_t n_in, int64_t n_out) {
        expect(name + ".weight", { n_in, n_out }, kind::matrix);
        vector(name + ".bias", n_out);
    }
    void norm(const std::string & name, int64_t n) {
        vector(name + ".weight", n);
        vector(name + ".bias", n);
    }
    void vector(const std::string & name, int64_t n) { expect(name, { n }, kind::f32); }
    void kernel(const std::string & name, int64_t side, int64_t n_out) {
        expect(name, { side, side, 3, n_out }, kind::floats);
    }
    // Checks the table of positions, which is square. Returns nothing: llama.cpp interpolates it to any size.
    void positions(const std::string & name, int64_t n_embd) {
        const ggml_tensor * t = find(name);
        const int64_t side = std::llround(std::sqrt((double) t->ne[1]));
        require(side >= 1 && side <= max_width && side*side == t->ne[1], "tensor '" + name + "' has " +
                std::to_string(t->ne[1]) + " rows, which are no square");
        expect(name, { n_embd, t->ne[1] }, kind::f32);
    }

    // Throws when the file has a tensor of the vision encoder that was not expected: llama.cpp would use some of them
    // without a check.
    void finish() const {
        for (ggml_tensor * t = ggml_get_first_tensor(file.tensors()); t; t = ggml_get_next_tensor(file.tensors(), t)) {
            const std::string name = t->name;
            const bool is_ours = name.rfind("v.", 0) == 0 || name.rfind("mm.", 0) == 0;
            require(!is_ours || known.count(name), "tensor '" + name + "' is not of a projector for these models");
        }
    }

private:
    enum class kind { f32, floats, matrix };

    const pymtp_gguf_file & file;
    std::set<std::string>   known;

    const ggml_tensor * find(const std::string & name) const {
        const ggml_tensor * t = ggml_get_tensor(file.tensors(), name.c_str());
        require(t, "tensor '" + name + "' is missing");
        return t;
    }

    void expect(const std::string & name, const std::vector<int64_t> & shape, kind kind) {
        const ggml_tensor * t = find(name);
        known.insert(name);
        std::string is;
        std::string should;
        for (size_t i = 0; i < GGML_MAX_DIMS; ++i) {
            const int64_t n = i < shape.size() ? shape[i] : 1;
            is     += (i ? "," : "") + std::to_string(t->ne[i]);
            should += (i ? "," : "") + std::to_string(n);
        }
        require(is == should, "tensor '" + name + "' has the shape [" + is + "], it must have [" + should + "]");
        const std::string type = ggml_type_name(t->type);
        switch (kind) {
            case kind::f32:
                require(t->type == GGML_TYPE_F32, "tensor '" + name + "' is of type " + type + ", it must be f32");
                break;
            case kind::floats:
                require(t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16, "tensor '" + name + "' is of type " +
                        type + ", it must be f32 or f16");
                break;
            case kind::matrix:
                require(pymtp_is_weight_type(t->type), "tensor '" + name + "' is of type " + type +
                        ", which is no type for weights");
                break;
        }
    }
};

} // namespace

int32_t pymtp_inspect_projector(const pymtp_gguf_file & file) {
    const std::string arch = file.string("general.architecture").value_or("");
    require(arch == "clip", "this file is no projector, its architecture is '" + arch + "'");
    require(file.flag("clip.has_vision_encoder").value_or(false), "this projector is not for images");
    require(!file.flag("clip.has_audio_encoder").value_or(false) &&
            !file.flag("clip.has_gen_audio_encoder").value_or(false), "projectors with sound are not supported");
    const std::string shared = file.string("clip.projector_type").value_or("");
    const std::string kind   = shared.empty() ? file.string("clip.vision.projector_type").value_or("") : shared;
    require(kind == "qwen3vl_merger", "this is a projector of kind '" + kind +
            "', the models that pymtp runs have qwen3vl_merger");

    const int64_t n_embd  = number(file, "clip.vision.embedding_length", 1, max_width);
    const int64_t n_head  = number(file, "clip.vision.attention.head_count", 1, n_embd);
    const int64_t n_ff    = number(file, "clip.vision.feed_forward_length", 1, max_width);
    const int64_t n_block = number(file, "clip.vision.block_count", 1, max_block);
    const int64_t n_out   = number(file, "clip.vision.projection_dim", 1, max_width);
    const int64_t patch   = number(file, "clip.vision.patch_size", 1, 256);
    require(n_embd % n_head == 0 && n_embd/n_head % 8 == 0, "clip.vision.embedding_length must be a multiple of 8 "
            "for each head");
    number(file, "clip.vision.attention.head_count_kv", n_head, n_head, n_head);
    number(file, "clip.vision.attention.head_dim", n_embd/n_head, n_embd/n_head, n_embd/n_head);
    number(file, "clip.vision.image_size", patch, max_width);
    number(file, "clip.vision.spatial_merge_size", 2, 2, 2);
    inspect_floats(file, "clip.vision.attention.layer_norm_epsilon", 0, 0.0f);
    inspect_floats(file, "clip.vision.image_mean", 3, 0.0f);
    inspect_floats(file, "clip.vision.image_std", 3, 1e-6f);
    // What llama.cpp reads without a look at the type: each throws unless the key is absent or of this type.
    for (const char * key : { "clip.use_gelu", "clip.use_silu" }) {
        file.flag(key);
    }
    for (const char * key : { "general.name", "general.description", "clip.vision.mm_patch_merge_type" }) {
        file.string(key);
    }
    for (const char * key : { "clip.minicpmv_query_num", "clip.vision.n_wa_pattern" }) {
        file.u32(key);
    }
    require(!file.has("clip.minicpmv_version"), "clip.minicpmv_version is not of a projector for these models");

    tensors t(file);
    t.kernel("v.patch_embd.weight",   patch, n_embd);
    t.kernel("v.patch_embd.weight.1", patch, n_embd);
    t.vector("v.patch_embd.bias", n_embd);
    t.positions("v.position_embd.weight", n_embd);
    for (int64_t i = 0; i < n_block; ++i) {
        const std::string block = "v.blk." + std::to_string(i) + ".";
        t.norm(block + "ln1", n_embd);
        t.norm(block + "ln2", n_embd);
        t.linear(block + "attn_qkv", n_embd, 3*n_embd);
        t.linear(block + "attn_out", n_embd, n_embd);
        t.linear(block + "ffn_up",   n_embd, n_ff);
        t.linear(block + "ffn_down", n_ff, n_embd);
    }
    t.norm("v.post_ln", n_embd);
    t.linear("mm.0", 4*n_embd, 4*n_embd);
    t.linear("mm.2", 4*n_embd, n_out);
    t.finish();
    pymtp_inspect_extents(file, "the file");
    return n_out;
}
