#pragma once

#include "llama.h"

#include <memory>
#include <mutex>
#include <vector>

class pymtp_file_rows;
struct pymtp_model_options;
struct pymtp_token_codepoints;

struct pymtp_model {
    explicit pymtp_model(std::shared_ptr<llama_model> model) : shared(std::move(model)) {}

    const std::shared_ptr<llama_model> shared;

    // Reads rows of the output layer for drafts from the model's file. Null if no weights were loaded, or if the model
    // has no head.
    std::shared_ptr<const pymtp_file_rows> output_file_rows;

    // The LoRA adapters in the order of the options, and the scale of each. llama.cpp's model owns the adapters.
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float>                adapter_scales;

    // Returns the table of the tokens' code points, which grammars use. The first call builds the table.
    std::shared_ptr<const pymtp_token_codepoints> codepoints() const;

private:
    mutable std::once_flag                        codepoints_once;
    mutable std::shared_ptr<const pymtp_token_codepoints> cached_codepoints;
};

// Makes a model without memory for its weights, to plan memory. Contexts made from such a model have no memory either,
// and cannot compute. On failure, sets the error message and returns null.
pymtp_model * pymtp_model_plan(const char * path, const pymtp_model_options & options);
