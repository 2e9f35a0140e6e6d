// Loads the LoRA adapters of a model, and checks the adapters before llama.cpp builds graphs with them.
#pragma once

#include "model.h"
#include "pymtp.h"

// Loads the adapters of the options into model.adapters. Throws std::runtime_error, which names the adapter, when
// llama.cpp cannot load an adapter, or when llama.cpp's graphs would fail with the adapter or ignore it. When loading
// failed, the error lines that llama.cpp has logged say why.
void pymtp_load_adapters(pymtp_model & model, const pymtp_model_options & options);
