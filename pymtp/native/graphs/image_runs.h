// Images in sequences, and the positions of tokens for RoPE.
//
// In the token list of a sequence, an image is a run of one negative token. The image has a grid of nx columns and ny
// rows, and its run has nx*ny tokens, row by row. Cells of the K/V cache are counted by tokens, as without images. Only
// RoPE sees other positions: all tokens of an image have the same temporal position, and count on in their row and
// column; the text after the image goes on after the largest position. This is M-RoPE of Qwen2-VL (arXiv 2409.12191,
// section 2.1).
#pragma once

#include "llama.h"

#include <algorithm>
#include <functional>
#include <vector>

struct pymtp_image_run {
    llama_pos first; // number of tokens before the run
    int32_t   nx;
    int32_t   ny;

    llama_pos end() const { return first + nx*ny; }
    int32_t n_positions() const { return std::max(nx, ny); }
};

// The image runs of a sequence, in their order.
using pymtp_image_runs = std::vector<pymtp_image_run>;

// Returns the image runs of a sequence, with those of tokens that are about to be processed.
using pymtp_images_of = std::function<const pymtp_image_runs & (llama_seq_id seq)>;

// The position of a token for RoPE: temporal, of its row, and of its column. Text has one position thrice.
struct pymtp_rope_position {
    llama_pos t;
    llama_pos y;
    llama_pos x;
};

// pos: number of the token in its sequence
inline pymtp_rope_position pymtp_rope_position_of(const pymtp_image_runs & runs, llama_pos pos) {
    llama_pos fewer = 0; // number of positions that the images before took less than tokens
    for (const pymtp_image_run & run : runs) {
        if (pos < run.first) {
            break;
        }
        const llama_pos begin = run.first - fewer;
        if (pos < run.end()) {
            const int32_t i = pos - run.first;
            return { begin, begin + i/run.nx, begin + i%run.nx };
        }
        fewer += run.nx*run.ny - run.n_positions();
    }
    return { pos - fewer, pos - fewer, pos - fewer };
}
