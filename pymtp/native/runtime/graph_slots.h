// Which kept graph a round runs with, see pymtp_decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

// Numbers of slots: one for each number of rows of one sequence, and MOST for the shapes of several that came last.
class pymtp_graph_slots {
public:
    // n_seqs: sequences with n rows each
    uint32_t of(int32_t n_seqs, int32_t n);

private:
    static constexpr uint32_t OF_ONE = 65; // rows: 64 drafts and the token before them
    static constexpr size_t   MOST   = 16;

    struct shape {
        int32_t  n_seqs;
        int32_t  n;
        uint64_t used;
    };
    std::vector<shape> shapes; // of several sequences
    uint64_t           clock = 0;
};
