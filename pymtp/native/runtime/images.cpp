#include "images.h"

#include "api_guard.h"

#include <string>

namespace {

constexpr int32_t max_side = 1 << 12; // largest number of columns or rows of a grid

void refuse(const std::string & why) {
    throw pymtp_failure(PYMTP_INVALID, why);
}

} // namespace

void pymtp_images::add(llama_token token, int32_t nx, int32_t ny) {
    if (token >= 0) {
        refuse("an image has a negative token, not " + std::to_string(token));
    }
    if (nx < 1 || ny < 1 || nx > max_side || ny > max_side) {
        refuse("an image of " + std::to_string(nx) + " columns and " + std::to_string(ny) + " rows of tokens");
    }
    const pymtp_image_run & known = grids.insert({token, {0, nx, ny}}).first->second;
    if (known.nx != nx || known.ny != ny) {
        refuse("image " + std::to_string(token) + " has " + std::to_string(known.nx) + " columns and " +
                std::to_string(known.ny) + " rows of tokens already");
    }
}

void pymtp_images::check(const pymtp_image_runs & runs, const llama_token * held, int32_t n_past,
        const llama_token * tokens, int32_t n, int32_t n_vocab) const {
    const bool  begun = !runs.empty() && n_past < runs.back().end(); // whether the last image is not whole yet
    llama_token image = begun ? held[n_past - 1] : 0;
    int32_t     left  = begun ? runs.back().end() - n_past : 0; // number of tokens that the image still needs
    for (int32_t i = 0; i < n; ++i) {
        const llama_token token = tokens[i];
        if (left > 0 && token != image) {
            refuse("image " + std::to_string(image) + " ends " + std::to_string(left) + " tokens early");
        }
        if (token >= n_vocab) {
            refuse("there is no token " + std::to_string(token) + " in a vocabulary of " + std::to_string(n_vocab));
        }
        if (token >= 0) {
            continue;
        }
        if (left == 0) {
            const auto found = grids.find(token);
            if (found == grids.end()) {
                refuse("there is no token " + std::to_string(token) + " in a vocabulary of " +
                        std::to_string(n_vocab) + ", and no image");
            }
            image = token;
            left  = found->second.nx*found->second.ny;
        }
        --left;
    }
}

void pymtp_images::check(const pymtp_image_rows & rows) const {
    const auto found = grids.find(rows.token);
    if (found == grids.end()) {
        refuse("there is no image " + std::to_string(rows.token));
    }
    if (rows.n != found->second.nx*found->second.ny) {
        refuse("image " + std::to_string(rows.token) + " has " + std::to_string(found->second.nx*found->second.ny) +
                " tokens, but " + std::to_string(rows.n) + " rows");
    }
}

void pymtp_images::extend(pymtp_image_runs & runs, int32_t n_past, const llama_token * tokens, int32_t n) const {
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 && (runs.empty() || n_past + i >= runs.back().end())) {
            const pymtp_image_run & grid = grids.at(tokens[i]);
            runs.push_back({n_past + i, grid.nx, grid.ny});
        }
    }
}

pymtp_rows_of_images::pymtp_rows_of_images(
        const pymtp_images & known, const pymtp_image_rows * images, int32_t n_images) {
    for (int32_t i = 0; i < n_images; ++i) {
        known.check(images[i]);
        rows[images[i].token] = images[i].rows;
    }
}

void pymtp_rows_of_images::check(const llama_token * tokens, int32_t n) const {
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 && !rows.count(tokens[i])) {
            refuse("the rows of image " + std::to_string(tokens[i]) + " are missing");
        }
    }
}
