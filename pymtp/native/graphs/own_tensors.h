// Tensors of our own that stay in device memory from graph to graph.
#pragma once

#include "pymtp_context.h"

#include "ggml-cpp.h"

#include <string>

class pymtp_own_tensors {
public:
    // n_max: largest number of tensors. no_alloc: whether the model only plans memory; the tensors then get none
    pymtp_own_tensors(size_t n_max, bool no_alloc);

    // Adds a tensor, which has no memory before allocate().
    ggml_tensor * add(ggml_type type, const std::string & name, int64_t ne0, int64_t ne1, int64_t ne2 = 1);

    // Allocates all tensors in a buffer, and returns it. Throws "no memory for " + purpose when there is not enough.
    ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t buft, const char * purpose);

    void add_bytes(pymtp_bytes_by_buffer & sum) const;

private:
    bool no_alloc;

    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
};
