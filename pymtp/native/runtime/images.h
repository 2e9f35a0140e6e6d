// The images that may occur in the sequences of a pair. An image has a negative token, see image_runs.h.
#pragma once

#include "image_runs.h"
#include "pymtp.h"

#include <unordered_map>

class pymtp_images {
public:
    // Adds an image. Throws pymtp_failure if it is invalid, or if the token has another grid.
    void add(llama_token token, int32_t nx, int32_t ny);

    // Throws pymtp_failure unless n tokens may follow a sequence of n_past tokens with these image runs: they must be
    // of the vocabulary or of known images, and images must be whole before text or another image follows.
    void check(const pymtp_image_runs & runs, const llama_token * held, int32_t n_past, const llama_token * tokens,
            int32_t n, int32_t n_vocab) const;

    // Throws pymtp_failure unless `rows` are all rows of a known image.
    void check(const pymtp_image_rows & rows) const;

    // Adds the runs of n tokens that follow n_past ones, which `check` has found valid.
    void extend(pymtp_image_runs & runs, int32_t n_past, const llama_token * tokens, int32_t n) const;

private:
    std::unordered_map<llama_token, pymtp_image_run> grids;
};

// The rows of the images of a prefill.
class pymtp_rows_of_images {
public:
    pymtp_rows_of_images(const pymtp_images & known, const pymtp_image_rows * images, int32_t n_images);

    // Throws pymtp_failure unless the rows of all images among n tokens were given.
    void check(const llama_token * tokens, int32_t n) const;
    // Returns the rows of an image.
    const float * of(llama_token token) const { return rows.at(token); }

private:
    std::unordered_map<llama_token, const float *> rows;
};
