// A head in separate files: checks that it fits a model, and chooses the tensors that the model takes from it.
#pragma once

#include "gguf_file.h"

#include "pymtp_hooks.h"

#include <string>
#include <vector>

// Finds the head's tensors for a model. model: the model's files. path: the head's file; the first part of a split
// one. Throws pymtp_file_error when the file has no head, or when the head does not fit the model.
pymtp_head_files pymtp_find_head(const std::vector<pymtp_gguf_file> & model, const std::string & path);

// Tells whether the files hold a head without its trunk.
bool pymtp_is_head_alone(const std::vector<pymtp_gguf_file> & files);

// Returns a tensor of the head's block that neither the trunk's blocks nor a head are known to have, "" if there is
// none: a likely reason why llama.cpp could not load the file. head: the model's own path when the head is inside.
// Throws pymtp_file_error when there is no head.
std::string pymtp_find_unknown_tensor(const std::string & model, const std::string & head);
