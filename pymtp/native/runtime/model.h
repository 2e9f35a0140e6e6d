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

    // reads rows of the output layer for drafts from the file; null without weights, or without a head
    std::shared_ptr<const pymtp_file_rows> output_file_rows;

    // in the given order, with their scales; llama.cpp's model owns them
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float>                adapter_scales;

    // returns the table that grammars use, which the first call builds
    std::shared_ptr<const pymtp_token_codepoints> codepoints() const;

private:
    mutable std::once_flag                        codepoints_once;
    mutable std::shared_ptr<const pymtp_token_codepoints> cached_codepoints;
};

// Makes a model without memory for its weights: contexts made from it have no memory either, and cannot compute.
// Returns null, with the error set, on failure.
pymtp_model * pymtp_model_plan(const char * path, const pymtp_model_options & options);
