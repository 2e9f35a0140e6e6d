// Loads projectors, and encodes images with llama.cpp's vision encoder (tools/mtmd).
#include "pymtp_projector.h"

#include "api_guard.h"
#include "inspect_projector.h"
#include "model.h"
#include "turns.h"

#include "clip.h"
#include "clip-impl.h"
#include "mtmd-image.h"

#include <atomic>
#include <cmath>
#include <mutex>

namespace {

constexpr int32_t max_side  = 1 << 15; // largest side of an image, in pixels
constexpr int32_t max_ratio = 200;     // largest ratio of the sides, as in Qwen's own preprocessing

void refuse(const std::string & why) {
    throw pymtp_failure(PYMTP_INVALID, why);
}

void log_by_llama(ggml_log_level level, const char * text, void *) {
    ggml_log_callback callback = nullptr;
    void *            data     = nullptr;
    llama_log_get(&callback, &data);
    // Its warnings are the same for each projector of a kind, and what it says of each image is of no interest.
    callback(level == GGML_LOG_LEVEL_INFO ? GGML_LOG_LEVEL_DEBUG :
            level == GGML_LOG_LEVEL_WARN ? GGML_LOG_LEVEL_INFO : level, text, data);
}

struct clip_deleter {
    void operator()(clip_ctx * ctx) const { clip_free(ctx); }
};

bool is_end_of_layer(const ggml_tensor * node) {
    return std::string_view(node->name).rfind("layer_out", 0) == 0;
}

} // namespace

struct pymtp_projector {
    pymtp_projector(const char * path, const pymtp_model & model, const pymtp_projector_options & options);

    int64_t bytes() const;
    clip_image_f32 grid(int32_t width, int32_t height, int32_t & nx, int32_t & ny) const;

    // Encoding an image: begin, then advance until it returns true, or end. See pymtp_projector_begin.
    void begin(const uint8_t * pixels, int32_t width, int32_t height);
    bool advance(double seconds, float * rows);
    void end() { turns.end(); }

    std::atomic<int64_t> n_layers{0}; // computed so far, for all images

    // Runs a function of the C API. Returns PYMTP_OK, or the status of what the function has thrown. After a failed
    // assertion of llama.cpp the projector may be inconsistent, and refuses further calls.
    template <typename F> int call(F && body) const noexcept;

private:
    // The result of the work on the other thread.
    struct result {
        int                status = PYMTP_OK;
        std::string        error;
        std::vector<float> rows;
    };

    mutable std::atomic<bool> broken{false};

    const int32_t n_threads;
    const int32_t max_tokens; // of an image; 0: llama.cpp's default

    std::unique_ptr<clip_ctx, clip_deleter> ctx;
    std::unique_ptr<mtmd_image_preprocessor> preprocessor;

    std::unique_ptr<clip_image_u8> image; // until it is prepared
    result      encoded;
    pymtp_turns turns; // the last member: its thread, which uses the others, ends first

    mtmd_image_preproc_out preprocess(const clip_image_u8 & image) const;
    std::vector<float> encode();

    // ggml calls it before and after it computes a node. Returning true before asks for the call after, where false
    // ends the computation.
    static bool on_node(ggml_tensor * node, bool before, void * data) {
        if (before) {
            return is_end_of_layer(node);
        }
        auto * self = static_cast<pymtp_projector *>(data);
        self->n_layers++;
        return self->turns.pause();
    }
};

template <typename F> int pymtp_projector::call(F && body) const noexcept {
    const pymtp_call guard;
    int status = PYMTP_OK;
    try {
        pymtp_clear_errors();
        if (broken) {
            throw pymtp_failure(PYMTP_BROKEN, "this projector failed and cannot go on: load it again");
        }
        body();
    } catch (const pymtp_failure & failure) {
        status = failure.status;
        pymtp_store_error(failure.what());
    } catch (...) {
        status = PYMTP_FAILED;
        pymtp_store_exception();
    }
    if (!guard.assertion().empty()) {
        broken = true;
        status = PYMTP_BROKEN;
    }
    return status;
}

pymtp_projector::pymtp_projector(
        const char * path, const pymtp_model & model, const pymtp_projector_options & options) :
    n_threads(options.n_threads), max_tokens(options.max_tokens) {
    static std::once_flag once;
    std::call_once(once, [] { g_logger_state.log_callback = log_by_llama; });

    const int32_t n_made  = pymtp_inspect_projector(pymtp_gguf_file(path));
    const int32_t n_taken = llama_model_n_embd_inp(model.shared.get());
    if (n_made != n_taken) {
        throw pymtp_file_error("the projector is of another model: it makes rows of " + std::to_string(n_made) +
                ", the model takes rows of " + std::to_string(n_taken));
    }
    clip_context_params params = {};
    params.use_gpu           = options.use_gpu;
    params.flash_attn_type   = CLIP_FLASH_ATTN_TYPE_AUTO;
    params.image_min_tokens  = options.min_tokens;
    params.image_max_tokens  = options.max_tokens;
    params.cb_eval           = on_node;
    params.cb_eval_user_data = this;
    ctx.reset(clip_init(path, params).ctx_v);
    if (!ctx) {
        throw pymtp_file_error("the projector cannot be loaded");
    }
    preprocessor = std::make_unique<mtmd_image_preprocessor_dyn_size>(ctx.get());
}

int64_t pymtp_projector::bytes() const {
    int64_t sum = 0;
    for (const auto & [device, size] : clip_get_mem_usage(ctx.get())) {
        sum += size;
    }
    return sum;
}

mtmd_image_preproc_out pymtp_projector::preprocess(const clip_image_u8 & image) const {
    mtmd_image_preproc_out out = preprocessor->preprocess(image);
    if (out.entries.size() != 1) {
        throw std::runtime_error("an image became " + std::to_string(out.entries.size()));
    }
    return out;
}

clip_image_f32 pymtp_projector::grid(int32_t width, int32_t height, int32_t & nx, int32_t & ny) const {
    const std::string size = std::to_string(width) + " x " + std::to_string(height) + " pixels";
    if (width < 1 || height < 1) {
        refuse("an image of " + size + " is empty");
    }
    if (width > max_side || height > max_side) {
        refuse("an image of " + size + " is larger than " + std::to_string(max_side) + " pixels a side");
    }
    if (width > (int64_t) max_ratio*height || height > (int64_t) max_ratio*width) {
        refuse("an image of " + size + " is too narrow: one side may be " + std::to_string(max_ratio) +
                " times as long as the other");
    }
    clip_image_u8 image;
    image.set_size({ width, height }, /*is_placeholder =*/ true);
    clip_image_f32 resized = std::move(preprocess(image).entries[0]);
    nx = clip_n_output_tokens_x(ctx.get(), &resized);
    ny = clip_n_output_tokens_y(ctx.get(), &resized);
    // whole rows and columns may take a few more tokens; only narrow images take many more
    if (max_tokens > 0 && (int64_t) nx*ny > max_tokens + max_tokens/4 + 1) {
        refuse("an image of " + size + " is too narrow: it would have " + std::to_string(nx*ny) +
                " tokens, and may have " + std::to_string(max_tokens));
    }
    return resized;
}

void pymtp_projector::begin(const uint8_t * pixels, int32_t width, int32_t height) {
    if (turns.begun()) {
        refuse("the projector encodes another image");
    }
    int32_t nx = 0;
    int32_t ny = 0;
    grid(width, height, nx, ny);
    image = std::make_unique<clip_image_u8>();
    image->set_size({ width, height }, /*is_placeholder =*/ false);
    image->cpy_buf({ pixels, pixels + (size_t) width*height*3 });
    encoded = {};
    turns.begin([this] {
        encoded.status = call([&] { encoded.rows = encode(); });
        if (encoded.status != PYMTP_OK) {
            encoded.error = pymtp_last_error();
        }
    });
}

bool pymtp_projector::advance(double seconds, float * rows) {
    if (!turns.begun()) {
        refuse("the projector encodes no image");
    }
    if (!turns.advance(seconds)) {
        return false;
    }
    const result done = std::move(encoded);
    encoded = {};
    if (done.status != PYMTP_OK) {
        throw pymtp_failure(done.status, done.error);
    }
    std::copy(done.rows.begin(), done.rows.end(), rows);
    return true;
}

// Runs on the thread of `turns`.
std::vector<float> pymtp_projector::encode() {
    clip_image_f32_batch batch;
    batch.entries = preprocess(*image).entries;
    image.reset(); // it may take more memory than all that follows
    const clip_image_f32 & only = batch.entries.at(0);
    const int32_t n_rows = clip_n_output_tokens_x(ctx.get(), &only)*clip_n_output_tokens_y(ctx.get(), &only);
    std::vector<float> rows((size_t) n_rows*clip_n_mmproj_embd(ctx.get()));
    const size_t n_values = rows.size();
    if (!turns.pause() || !clip_image_batch_encode(ctx.get(), n_threads, &batch, rows) || rows.size() != n_values) {
        throw std::runtime_error("the projector failed");
    }
    for (const float value : rows) {
        if (!std::isfinite(value)) {
            throw std::runtime_error("the projector has computed a value that is not finite: its file may be damaged");
        }
    }
    return rows;
}

// ── the C API ──

pymtp_projector * pymtp_projector_load(
        const char * path, const pymtp_model * model, const pymtp_projector_options * options) {
    return pymtp_guarded<pymtp_projector *>(nullptr, [&] { return new pymtp_projector(path, *model, *options); });
}

void pymtp_projector_free(pymtp_projector * projector) {
    delete projector;
}

int64_t pymtp_projector_bytes(const pymtp_projector * projector) {
    return pymtp_guarded<int64_t>(-1, [&] { return projector->bytes(); });
}

int pymtp_projector_grid(
        const pymtp_projector * projector, int32_t width, int32_t height, int32_t * nx, int32_t * ny) {
    return projector->call([&] { projector->grid(width, height, *nx, *ny); });
}

int64_t pymtp_projector_layers(const pymtp_projector * projector) {
    return projector->n_layers;
}

int pymtp_projector_begin(
        pymtp_projector * projector, const uint8_t * pixels, int32_t width, int32_t height) {
    return projector->call([&] { projector->begin(pixels, width, height); });
}

int pymtp_projector_advance(pymtp_projector * projector, double seconds, float * rows) {
    bool ended = false;
    const int status = projector->call([&] { ended = projector->advance(seconds, rows); });
    return status == PYMTP_OK && !ended ? PYMTP_RUNNING : status;
}

void pymtp_projector_end(pymtp_projector * projector) {
    projector->end();
}
