// Chooses the graph slot for a round, see pymtp_decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Numbers the slots: one for each number of rows of a single sequence, and MAX_BATCHED for the latest shapes of
// several.
class pymtp_graph_slots {
public:
    // n_seqs sequences with n_rows rows each
    struct shape {
        int32_t n_seqs;
        int32_t n_rows;
    };

    uint32_t slot_for(shape wanted);

    // Returns the largest shapes that can have slots at the same time.
    // n_seqs, n_rows: the largest values. room: the most rows of all sequences together
    static std::vector<shape> largest(int32_t n_seqs, int32_t n_rows, int32_t room);

private:
    static constexpr uint32_t MAX_SINGLE_ROWS = 65; // rows: 64 drafts, and the token before them
    // bounds the memory: the logits of 64 rows of a large vocabulary take 64 MB
    static constexpr size_t   MAX_BATCHED = 8;

    struct entry {
        shape    key;
        uint64_t used;
    };
    std::vector<entry> batched;
    uint64_t          clock = 0;
};
