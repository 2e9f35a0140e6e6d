// A head in files of its own: whether it belongs to a model, and which of its tensors the model takes.
#pragma once

#include "gguf_file.h"

#include "pymtp_hooks.h"

#include <string>
#include <vector>

// model: the files of the model that takes the head. path: of the head, of a split one its first part. Throws pymtp_refused
// where the file has no head, and where the head is not one for this model.
pymtp_head_files pymtp_find_head(const std::vector<pymtp_gguf_file> & model, const std::string & path);

// Whether the files hold a head, and not the trunk that it belongs to.
bool pymtp_is_head_alone(const std::vector<pymtp_gguf_file> & files);

// A tensor of the head's block that is like none of the trunk's and none of a head's own, "" where there is none: what llama.cpp
// may have counted where it could not load. head: the model's own path where the head is inside. Throws pymtp_refused where there
// is no head.
std::string pymtp_find_unknown_tensor(const std::string & model, const std::string & head);
