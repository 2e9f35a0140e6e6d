// The front door: what is refused of a model file before llama.cpp builds a model from it. llama.cpp takes much of a file on
// trust; a damaged one makes it divide by zero, call a function that is not there, or fail an assertion once it computes.
// Each of these throws pymtp_refused, with what was wrong and what would be right.
#pragma once

#include "gguf_file.h"
#include "pymtp.h"

#include <string>
#include <vector>

// A model's head, as far as llama.cpp finds it.
struct pymtp_head_found {
    int32_t     n_layer = 0; // its blocks: 0 or 1
    int32_t     n_trunk = 0; // the trunk's: all but the one that is announced as the head, unless that is the trunk's last
    std::string absent;               // why a head that is announced is not there, "" where it is or none is announced
    std::string refused;              // why llama.cpp would not find the head that is there, "" where it does
};

// inspect_head.cpp: looks for the head among the tensors.
pymtp_head_found pymtp_inspect_head(const std::vector<pymtp_gguf_file> & parts);

// inspect_shape.cpp: the keys of the architecture. Fills in what they say of the model.
void pymtp_inspect_shape(const pymtp_gguf_file & file, const std::string & arch, const pymtp_head_found & head, pymtp_file_info & info);

// inspect_vocab.cpp: the tokenizer's keys
void pymtp_inspect_vocab(const pymtp_gguf_file & file);

// inspect_tensors.cpp: the tensors of all parts of a model. Fills in the type of most weights.
void pymtp_inspect_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);

// The same of a head in files of its own, whose tensors are complete where llama.cpp says so.
void pymtp_inspect_head_tensors(const std::vector<pymtp_gguf_file> & parts, pymtp_file_info & info);
