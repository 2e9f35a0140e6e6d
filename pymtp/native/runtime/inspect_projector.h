// Validates the file of a projector, see inspect.h.
#pragma once

#include "gguf_file.h"

// Returns the number of floats of each row that the projector makes. Throws pymtp_file_error for a fault.
int32_t pymtp_inspect_projector(const pymtp_gguf_file & file);
