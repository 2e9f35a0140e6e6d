// Loads the LoRA adapters of a model, and checks them before llama.cpp builds graphs with them.
#pragma once

#include "model.h"
#include "pymtp.h"

// Adds the adapters to model.adapters. Throws std::runtime_error, naming the adapter, when llama.cpp cannot load it,
// or when its graphs could not or would not use it. llama.cpp's own errors say why.
void pymtp_load_adapters(pymtp_model & model, const pymtp_model_options & options);
