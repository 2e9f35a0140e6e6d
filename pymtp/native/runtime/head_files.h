// Handles a head in separate files: checks that the head fits a model, and chooses which of its tensors the model gets.
#pragma once

#include "gguf_file.h"

#include "pymtp_hooks.h"

#include <string>
#include <vector>

// Finds the tensors that a model gets from a head in separate files. Throws pymtp_file_error when the file has no head,
// or when the head does not fit the model.
// model: the files of the model.
// path: the file of the head; for a split file, its first part
pymtp_head_files pymtp_find_head(const std::vector<pymtp_gguf_file> & model, const std::string & path);

// Returns whether the files contain a head but not the trunk that it belongs to.
bool pymtp_is_head_alone(const std::vector<pymtp_gguf_file> & files);

// Returns the name of a tensor in the head's block of a kind that neither blocks of the trunk nor heads are known to
// have, or "" if there is none. Such a tensor is a likely reason why llama.cpp could not load the file. Throws
// pymtp_file_error when there is no head.
// model: the path of the model's file.
// head: the path of the head's file; the same as `model` if the model's file contains the head
std::string pymtp_find_unknown_tensor(const std::string & model, const std::string & head);
