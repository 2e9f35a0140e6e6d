// LoRA adapters of a model: loaded, and looked at before llama.cpp builds graphs with them.
#pragma once

#include "model.h"
#include "pymtp.h"

// Into model.adapters. Throws std::runtime_error, which names the adapter, for one that llama.cpp cannot load or that its
// graphs could not, or would not, multiply by. llama.cpp's own errors say why.
void pymtp_load_adapters(pymtp_model & model, const pymtp_model_options & options);
