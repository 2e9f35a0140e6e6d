// The placement of weights on devices, as llama_model_params has it.
#pragma once

#include "pymtp.h"

#include "llama.h"

#include <string>
#include <vector>

// Owns the arrays that the params point to. llama.cpp reads the overrides while it loads, and copies the split.
class pymtp_placement {
public:
    // Throws std::invalid_argument for a pattern that is not a regular expression, an unknown buffer type, or a
    // missing GPU.
    explicit pymtp_placement(const pymtp_model_options & options);
    pymtp_placement(const pymtp_placement &) = delete;
    pymtp_placement & operator=(const pymtp_placement &) = delete;

    void write(llama_model_params & params) const;

    // Logs a warning for each override that matches no loaded tensor: llama.cpp does not.
    void warn_unmatched(const llama_model & model) const;

private:
    const pymtp_model_options & options;
    std::vector<std::string>                       patterns;
    std::vector<llama_model_tensor_buft_override>  overrides; // ends with an entry without a pattern
    std::vector<float>                             split;     // an entry for each possible device
};
