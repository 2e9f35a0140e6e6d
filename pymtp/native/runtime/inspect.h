// Validates a model's file before llama.cpp builds a model from it. llama.cpp trusts most values in a file: with a
// damaged file it divides by zero, calls a null function, or fails an assertion during computation. Each function here
// throws pymtp_file_error for a fault; the message names the fault and the right value.
#pragma once

#include "gguf_file.h"
#include "pymtp.h"

#include <string>
#include <vector>

// Describes the head that llama.cpp would find in a model.
struct pymtp_head_found {
    int32_t     n_layer = 0; // number of blocks of the head: 0 or 1
    // number of blocks of the trunk: all but the head that the keys announce, unless the announced block is really part
    // of the trunk
    int32_t     n_trunk = 0;
    std::string absent;      // if the keys announce a head that is missing: the reason; otherwise ""
    std::string refused;     // if there is a head that llama.cpp would not find: the reason; otherwise ""
};

// inspect_head.cpp: looks for the head's tensors.
pymtp_head_found pymtp_inspect_head(const std::vector<pymtp_gguf_file> & parts);

// inspect_shape.cpp: checks the keys that describe the architecture, and fills in the sizes in `info`.
void pymtp_inspect_shape(const pymtp_gguf_file & file, const std::string & arch, const pymtp_head_found & head,
        pymtp_file_info & info);

// inspect_vocab.cpp: checks the keys of the tokenizer.
void pymtp_inspect_vocab(const pymtp_gguf_file & file);

// inspect_tensors.cpp: checks the tensors in all files of a model, and fills in info.weight_type.
void pymtp_inspect_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);

// Returns whether matrices of weights may be of a type.
bool pymtp_is_weight_type(ggml_type type);

// Throws when a file ends before the data of all its tensors. llama.cpp would report that as well, but only while
// loading. what: the file, in the error message
void pymtp_inspect_extents(const pymtp_gguf_file & part, const std::string & what);

// Checks the tensors of a head in separate files like pymtp_inspect_tensors, but not whether all tensors are there:
// llama.cpp checks that.
void pymtp_inspect_head_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);
