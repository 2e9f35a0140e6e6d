// Which kept graph a round runs with, see pymtp_decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Numbers of slots: one for each number of rows of one sequence, and MOST for the shapes of several that came last.
class pymtp_graph_slots {
public:
    // n sequences with so many rows each
    struct shape {
        int32_t n_seqs;
        int32_t n_rows;
    };

    uint32_t of(shape wanted);

    // The largest shapes that there may be slots for at a time.
    // n_seqs, n_rows: the most of each. room: rows of all sequences.
    static std::vector<shape> largest(int32_t n_seqs, int32_t n_rows, int32_t room);

private:
    static constexpr uint32_t OF_ONE = 65; // rows: 64 drafts and the token before them
    static constexpr size_t   MOST   = 8;  // the logits of 64 rows of a large vocabulary take 64 MB

    struct kept {
        shape    of;
        uint64_t used;
    };
    std::vector<kept> several;
    uint64_t          clock = 0;
};
