// Where weights go, in the words of llama_model_params.
#pragma once

#include "pymtp.h"

#include "llama.h"

#include <string>
#include <vector>

// Holds what the params point at. llama.cpp looks at the overrides while it loads, and copies the split.
class pymtp_placing {
public:
    // Throws std::invalid_argument for a pattern that is no regular expression, a type of buffer that there is not, and a GPU
    // that is not there.
    explicit pymtp_placing(const pymtp_model_options & options);
    pymtp_placing(const pymtp_placing &) = delete;
    pymtp_placing & operator=(const pymtp_placing &) = delete;

    void write(llama_model_params & params) const;

    // Says in the log which overrides are for no tensor that was loaded: llama.cpp does not.
    void warn_of_idle(const llama_model & model) const;

private:
    const pymtp_model_options & options;
    std::vector<std::string>                       patterns;
    std::vector<llama_model_tensor_buft_override>  overrides; // ends with one without a pattern
    std::vector<float>                             split;     // of all devices that llama.cpp may have
};
