// Loads models, and implements the C functions for tokenization.
#include "model.h"

#include "adapters.h"
#include "api_guard.h"
#include "file_rows.h"
#include "grammar.h"
#include "head_files.h"
#include "inspect.h"
#include "placement.h"
#include "pymtp.h"

#include "llama-model.h"
#include "pymtp_context.h"

#include <cstring>
#include <optional>
#include <string>
#include <vector>

static bool on_progress(float /*progress*/, void * /*user_data*/) {
    return !pymtp_abort_requested();
}

static bool has_head(const llama_model & model) {
    return model.hparams.n_layer_nextn > 0 && model.layers[model.hparams.n_layer()].nextn.eh_proj;
}

static llama_load_mode load_mode_of(const pymtp_model_options & options) {
    if (options.use_mlock) {
        return options.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK;
    }
    return options.use_mmap ? LLAMA_LOAD_MODE_AUTO : LLAMA_LOAD_MODE_NONE;
}

// Returns a value if the loader must treat the head specially: because the head is in separate files, or because the
// model has to be loaded without a head. The latter is needed if the user leaves the head out, or if the keys announce
// a head that is missing: llama.cpp would require all tensors of such a head.
static std::optional<pymtp_head_files> find_head_override(const char * path, const pymtp_model_options & options) {
    const std::vector<pymtp_gguf_file> parts = pymtp_open_parts(path);
    if (options.head && options.mtp && !options.vocab_only) {
        return pymtp_find_head(parts, options.head);
    }
    const pymtp_head_found found = pymtp_inspect_head(parts);
    if (found.absent.empty() && (options.mtp || found.n_layer == 0)) {
        return std::nullopt;
    }
    pymtp_head_files none;
    none.block = found.n_trunk;
    return none;
}

// Returns the list of metadata overrides that passes `head` to the loader. Its last entry has no key, which ends the
// list.
static std::vector<llama_model_kv_override> head_override(const pymtp_head_files & head) {
    std::vector<llama_model_kv_override> overrides(2);
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
    std::strcpy(overrides[0].key, PYMTP_HEAD_KEY);
    overrides[0].val_i64 = reinterpret_cast<int64_t>(&head);
    return overrides;
}

// Opens the file that contains the output layer for drafts, to read rows from it.
static std::shared_ptr<const pymtp_file_rows> find_output_file_rows(
        const std::string & path, const std::optional<pymtp_head_files> & head, const llama_model & model) {
    const ggml_tensor & matrix = *pymtp_draft_output_layer(model);
    const std::string   name   = ggml_get_name(&matrix);
    if (head) {
        for (const auto & [in_file, in_model] : head->names) {
            if (in_model == name) {
                return std::make_shared<pymtp_file_rows>(head->paths[0], in_file, matrix);
            }
        }
    }
    return std::make_shared<pymtp_file_rows>(path, name, matrix);
}

// Returns the error message for a model that could not be loaded. It names an unexpected tensor of the head, because
// llama.cpp only logs how many unexpected tensors there are.
static std::string load_error(const char * path, const pymtp_model_options & options) {
    std::string unknown;
    if (options.mtp && !options.vocab_only) {
        try {
            unknown = pymtp_find_unknown_tensor(path, options.head ? options.head : path);
        } catch (const pymtp_file_error &) {
            // the model has no head that could be the reason
        }
    }
    return "llama.cpp cannot load the file" +
            (unknown.empty() ? "" : "; its head's tensor '" + unknown + "' is like none of the model's");
}

static pymtp_model * load(const char * path, const pymtp_model_options & options, bool plan) {
    return pymtp_guarded<pymtp_model *>(nullptr, [&]() -> pymtp_model * {
        const pymtp_placement placing(options);
        llama_model_params params = llama_model_default_params();
        const std::optional<pymtp_head_files> head = find_head_override(path, options);
        std::vector<llama_model_kv_override>  overrides;
        if (head) {
            overrides = head_override(*head);
            params.kv_overrides = overrides.data();
        }
        params.load_mtp   = options.mtp;
        params.vocab_only = options.vocab_only;
        params.no_alloc   = plan;
        // when memory is only planned, the file must not be mapped
        params.load_mode  = plan ? LLAMA_LOAD_MODE_NONE : load_mode_of(options);
        if (!plan) {
            params.progress_callback = on_progress;
        }
        placing.write(params);
        std::shared_ptr<llama_model> model(llama_model_load_from_file(path, params), llama_model_free);
        if (!model) {
            pymtp_set_error(load_error(path, options).c_str());
            return nullptr;
        }
        auto shared = std::make_unique<pymtp_model>(std::move(model));
        if (params.load_mtp && !params.vocab_only && !plan && has_head(*shared->shared)) {
            shared->output_file_rows = find_output_file_rows(path, head, *shared->shared);
        }
        if (!params.vocab_only && !plan) {
            placing.warn_unmatched(*shared->shared);
            pymtp_load_adapters(*shared, options);
        }
        return shared.release();
    });
}

int pymtp_check_model_options(const pymtp_model_options * options) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        try {
            const pymtp_placement placing(*options);
            return PYMTP_OK;
        } catch (const std::invalid_argument & error) {
            pymtp_set_error(error.what());
            return PYMTP_INVALID;
        }
    });
}

int pymtp_check_adapters(const char * path, const pymtp_model_options * options) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        const std::unique_ptr<pymtp_model> model(pymtp_model_plan(path, *options));
        if (!model) {
            return PYMTP_FAILED;
        }
        pymtp_load_adapters(*model, *options);
        return PYMTP_OK;
    });
}

pymtp_model * pymtp_model_load(const char * path, const pymtp_model_options * options) {
    return load(path, *options, false);
}

pymtp_model * pymtp_model_plan(const char * path, const pymtp_model_options & options) {
    return load(path, options, true);
}

void pymtp_model_free(pymtp_model * model) {
    delete model;
}

std::shared_ptr<const pymtp_token_codepoints> pymtp_model::codepoints() const {
    std::call_once(codepoints_once, [&] {
        cached_codepoints = std::make_shared<pymtp_token_codepoints>(llama_model_get_vocab(shared.get()));
    });
    return cached_codepoints;
}

llama_model * pymtp_model_get(const pymtp_model * model) {
    return model->shared.get();
}

int32_t pymtp_tokenize(const pymtp_model * model, const char * text, int32_t length, llama_token * tokens,
        int32_t n_max, bool add_special) {
    return pymtp_guarded<int32_t>(INT32_MIN, [&] {
        return llama_tokenize(llama_model_get_vocab(model->shared.get()), text, length, tokens, n_max, add_special,
                true);
    });
}

int32_t pymtp_token_piece(const pymtp_model * model, llama_token token, char * piece, int32_t n_max) {
    return pymtp_guarded<int32_t>(INT32_MIN, [&] {
        const std::string bytes = pymtp_token_bytes(llama_model_get_vocab(model->shared.get()), token);
        const int32_t n = bytes.size();
        if (n > n_max) {
            return -n;
        }
        std::copy(bytes.begin(), bytes.end(), piece);
        return n;
    });
}
