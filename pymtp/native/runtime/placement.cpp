#include "placement.h"

#include "ggml-backend.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <regex>
#include <stdexcept>

static bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

static int32_t count_gpus() {
    int32_t n = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        n += is_gpu(ggml_backend_dev_get(i));
    }
    return n;
}

// Returns the buffer type of that name: the own memory of any device, or host memory that a device can access.
static ggml_backend_buffer_type_t find_buffer_type(const std::string & name) {
    std::string known;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        for (ggml_backend_buffer_type_t type : {ggml_backend_dev_buffer_type(device),
                ggml_backend_dev_host_buffer_type(device)}) {
            if (type && name == ggml_backend_buft_name(type)) {
                return type;
            }
            if (type) {
                known += (known.empty() ? "" : ", ") + std::string(ggml_backend_buft_name(type));
            }
        }
    }
    throw std::invalid_argument("there is no buffer type " + name + " here, only " + known);
}

pymtp_placement::pymtp_placement(const pymtp_model_options & options) : options(options) {
    for (int32_t i = 0; i < options.n_overrides; ++i) {
        try {
            const std::regex compiled(options.patterns[i]);
        } catch (const std::regex_error & error) {
            throw std::invalid_argument(std::string(options.patterns[i]) + " is no regular expression: " +
                    error.what());
        }
        patterns.emplace_back(options.patterns[i]);
    }
    for (int32_t i = 0; i < options.n_overrides; ++i) {
        overrides.push_back({patterns[i].c_str(), find_buffer_type(options.buffers[i])});
    }
    overrides.push_back({nullptr, nullptr});
    const int32_t n_gpus = count_gpus();
    if (n_gpus > 0 && (options.main_gpu < 0 || options.main_gpu >= n_gpus)) {
        throw std::invalid_argument("main_gpu=" + std::to_string(options.main_gpu) +
                " is not there: this machine has " + std::to_string(n_gpus) + ", counted from 0");
    }
    if (options.n_tensor_split > (int32_t) llama_max_devices()) {
        throw std::invalid_argument("tensor_split has more shares than llama.cpp has devices");
    }
    if (options.n_tensor_split > 0) {
        split.assign(options.tensor_split, options.tensor_split + options.n_tensor_split);
        split.resize(llama_max_devices());
    }
}

void pymtp_placement::write(llama_model_params & params) const {
    params.n_gpu_layers          = options.n_gpu_layers;
    params.split_mode            = options.split_mode;
    params.main_gpu              = options.main_gpu;
    params.tensor_split          = split.empty() ? nullptr : split.data();
    params.tensor_buft_overrides = patterns.empty() ? nullptr : overrides.data();
}

void pymtp_placement::warn_unmatched(const llama_model & model) const {
    for (size_t i = 0; i < patterns.size(); ++i) {
        const std::regex expression(patterns[i]);
        const auto & tensors = model.tensors_by_name;
        if (std::any_of(tensors.begin(), tensors.end(),
                [&](const auto & named) { return std::regex_search(named.first, expression); })) {
            continue;
        }
        if (i + options.n_moe_overrides < patterns.size()) {
            LLAMA_LOG_WARN("override_tensor: no tensor that is loaded has a name that matches %s\n",
                    patterns[i].c_str());
        } else {
            LLAMA_LOG_WARN("n_cpu_moe: the model has no experts\n");
        }
    }
}
