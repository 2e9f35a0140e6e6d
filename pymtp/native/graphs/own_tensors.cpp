#include "own_tensors.h"

#include <stdexcept>

pymtp_own_tensors::pymtp_own_tensors(size_t n_max, bool no_alloc) :
    no_alloc(no_alloc), ctx(ggml_init({ n_max*ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true })) {}

ggml_tensor * pymtp_own_tensors::add(ggml_type type, const std::string & name, int64_t ne0, int64_t ne1, int64_t ne2) {
    return ggml_set_name(ggml_new_tensor_3d(ctx.get(), type, ne0, ne1, ne2), name.c_str());
}

ggml_backend_buffer_t pymtp_own_tensors::allocate(ggml_backend_buffer_type_t buft, const char * purpose) {
    buffer.reset(pymtp_alloc_tensors(ctx.get(), buft, no_alloc));
    if (!buffer) {
        throw std::runtime_error(std::string("no memory for ") + purpose);
    }
    return buffer.get();
}

void pymtp_own_tensors::add_bytes(pymtp_bytes_by_buffer & sum) const {
    ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buffer.get());
    sum[buft] += no_alloc ? ggml_backend_alloc_ctx_tensors_from_buft_size(ctx.get(), buft)
                          : ggml_backend_buffer_get_size(buffer.get());
}

ggml_backend_buffer_t pymtp_alloc_tensors(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc) {
    if (!no_alloc) {
        return ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    }
    ggml_backend_buffer_t placeholder = ggml_backend_buft_alloc_buffer(buft, 0);
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        t->buffer = placeholder; // tensors with a buffer are not allocated by the scheduler
    }
    return placeholder;
}
