// Chooses the graph slot for the decodes of a round, see pymtp_decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Assigns slots to shapes of decodes. Each number of rows of a single sequence has its own slot; MAX_BATCHED further
// slots hold the most recently used shapes of several sequences.
class pymtp_graph_slots {
public:
    // The shape of a decode: n_seqs sequences with n_rows rows each.
    struct shape {
        int32_t n_seqs;
        int32_t n_rows;
    };

    uint32_t slot_for(shape wanted);

    // Returns the MAX_BATCHED largest shapes of several sequences, which could all have slots at the same time.
    // n_seqs, n_rows: largest number of sequences, and of rows per sequence.
    // room: largest number of rows of all sequences together
    static std::vector<shape> largest(int32_t n_seqs, int32_t n_rows, int32_t room);

private:
    // largest number of rows of a single sequence: 64 drafts, and the token before the drafts
    static constexpr uint32_t MAX_SINGLE_ROWS = 65;
    // Bounds the memory of slots: in each, the logits of 64 rows of a large vocabulary take 64 MB.
    static constexpr size_t   MAX_BATCHED = 8;

    struct entry {
        shape    key;
        uint64_t used;
    };
    std::vector<entry> batched;
    uint64_t          clock = 0;
};
