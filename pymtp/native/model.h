#pragma once

#include "llama.h"

#include <memory>

struct pymtp_model {
    std::shared_ptr<llama_model> shared;
};
