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

// Returns how many layers the projector has computed so far, for all images.
PYMTP_API int64_t pymtp_projector_layers(const struct pymtp_projector * projector);

// Begins to encode an image, on a thread of the projector's own. The pixels are copied. Returns PYMTP_INVALID while
// another image is being encoded.
// pixels: height rows of width pixels of three bytes: red, green, blue.
PYMTP_API int pymtp_projector_begin(
        struct pymtp_projector * projector, const uint8_t * pixels, int32_t width, int32_t height);

// Lets the projector compute for `seconds`, and then to the end of the current layer. It computes at no other time, but
// prepares the image at once. Returns PYMTP_RUNNING if the image is not encoded yet, also when the poll callback has
// asked to abort the call. Otherwise the next image may begin.
// rows: receives nx*ny rows, see pymtp_projector_grid, each of as many floats as the model's embeddings have
PYMTP_API int pymtp_projector_advance(struct pymtp_projector * projector, double seconds, float * rows);

// Gives up the image that is being encoded, if there is one. Waits for the preparation of the image.
PYMTP_API void pymtp_projector_end(struct pymtp_projector * projector);

#ifdef __cplusplus
}
#endif
