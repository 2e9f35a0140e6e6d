#pragma once

#include "llama.h"

#include <memory>
#include <mutex>
#include <vector>

class pymtp_file_rows;
struct pymtp_model_options;
struct pymtp_spelling;

struct pymtp_model {
    explicit pymtp_model(std::shared_ptr<llama_model> model) : shared(std::move(model)) {}

    const std::shared_ptr<llama_model> shared;

    // of the matrix that drafts are made with; null without weights, and without a head
    std::shared_ptr<const pymtp_file_rows> output_rows;

    // in the order that they were given in, with what each is multiplied by; they live as long as llama.cpp's model
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float>                adapter_scales;

    // what grammars know of the vocabulary, made when the first one asks
    std::shared_ptr<const pymtp_spelling> spelling() const;

private:
    mutable std::once_flag                        made_spelling;
    mutable std::shared_ptr<const pymtp_spelling> kept_spelling;
};

// A model without memory for its weights: contexts made from it cannot compute, and have no memory either. Null, with the
// error set, on failure.
pymtp_model * pymtp_model_plan(const char * path, const pymtp_model_options & options);
