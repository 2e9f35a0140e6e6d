// The C API of projectors. A projector, in files named "mmproj", encodes an image to rows that a model takes in place
// of the embeddings of tokens. It runs apart from the contexts of a pair.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pymtp_projector_options {
    bool    use_gpu;    // whether to run on the first GPU, if there is one
    int32_t n_threads;
    int32_t min_tokens; // images of fewer tokens are enlarged; 0: llama.cpp's default for the kind of projector
    int32_t max_tokens; // images of more tokens are reduced; 0: likewise
};

// Loads a projector for a model. Returns NULL on failure, also when it is for other models.
struct pymtp_projector;
PYMTP_API struct pymtp_projector * pymtp_projector_load(
        const char * path, const struct pymtp_model * model, const struct pymtp_projector_options * options);
PYMTP_API void pymtp_projector_free(struct pymtp_projector * projector);

// Returns the bytes of the projector's weights.
PYMTP_API int64_t pymtp_projector_bytes(const struct pymtp_projector * projector);

// Computes the grid of an image of width x height pixels: nx columns and ny rows of tokens. Returns PYMTP_INVALID for
// an image that is too narrow, too large, or empty. Threads may call it at the same time.
PYMTP_API int pymtp_projector_grid(
        const struct pymtp_projector * projector, int32_t width, int32_t height, int32_t * nx, int32_t * ny);

// Encodes an image. One call at a time may use a projector.
// pixels: height rows of width pixels of three bytes: red, green, blue.
// rows: receives nx*ny rows, see pymtp_projector_grid, each of as many floats as the model's embeddings have
PYMTP_API int pymtp_projector_encode(
        struct pymtp_projector * projector, const uint8_t * pixels, int32_t width, int32_t height, float * rows);

// While `cancelled` is true, the projector's current call and all later calls of encode return PYMTP_CANCELLED. May be
// called from any thread.
PYMTP_API void pymtp_projector_cancel(struct pymtp_projector * projector, bool cancelled);

#ifdef __cplusplus
}
#endif
