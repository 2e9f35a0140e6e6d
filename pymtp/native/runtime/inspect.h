// Validates a model file before llama.cpp builds a model from it. llama.cpp trusts much of a file; a damaged one makes
// it divide by zero, call a null function, or fail an assertion during computation. Each function throws
// pymtp_file_error, which names the fault and the right value.
#pragma once

#include "gguf_file.h"
#include "pymtp.h"

#include <string>
#include <vector>

// A model's head, as far as llama.cpp would find it.
struct pymtp_head_found {
    int32_t     n_layer = 0; // blocks of the head: 0 or 1
    int32_t     n_trunk = 0; // blocks of the trunk: all but the announced head, unless that is the trunk's last block
    std::string absent;      // why an announced head is missing, "" when it is there or none is announced
    std::string refused;     // why llama.cpp would not find the head that is there, "" when it would
};

// inspect_head.cpp: looks for the head among the tensors.
pymtp_head_found pymtp_inspect_head(const std::vector<pymtp_gguf_file> & parts);

// inspect_shape.cpp: checks the keys of the architecture, and fills in the model's sizes.
void pymtp_inspect_shape(const pymtp_gguf_file & file, const std::string & arch, const pymtp_head_found & head,
        pymtp_file_info & info);

// inspect_vocab.cpp: checks the tokenizer's keys.
void pymtp_inspect_vocab(const pymtp_gguf_file & file);

// inspect_tensors.cpp: checks the tensors of all parts of a model, and fills in the type of most weights.
void pymtp_inspect_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);

// Does the same for a head in separate files. llama.cpp checks that its tensors are complete.
void pymtp_inspect_head_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);
