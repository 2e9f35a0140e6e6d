// Converts our options for the placement of weights on devices to fields of llama_model_params.
#pragma once

#include "pymtp.h"

#include "llama.h"

#include <string>
#include <vector>

// Owns the arrays that the llama_model_params point to. Must live until the model is loaded, because llama.cpp reads
// the overrides while it loads.
class pymtp_placement {
public:
    // Throws std::invalid_argument if a pattern is not a regular expression, a buffer type is unknown, or a GPU does
    // not exist.
    explicit pymtp_placement(const pymtp_model_options & options);
    pymtp_placement(const pymtp_placement &) = delete;
    pymtp_placement & operator=(const pymtp_placement &) = delete;

    void write(llama_model_params & params) const;

    // Logs a warning for each override that matches no loaded tensor, because llama.cpp logs none.
    void warn_unmatched(const llama_model & model) const;

private:
    const pymtp_model_options & options;
    std::vector<std::string>                       patterns;
    std::vector<llama_model_tensor_buft_override>  overrides; // the last entry has no pattern, which ends the list
    // shares of the devices; as many entries as llama.cpp supports devices
    std::vector<float>                             split;
};
