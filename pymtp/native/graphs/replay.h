// Rewinds recurrent layers after drafts were rejected. For this, each layer keeps for each sequence one state, and the
// inputs of the last tokens.
//
// A ubatch that verifies a few tokens of each sequence leaves the state as it was before these tokens, and stores their
// inputs, because some tokens may be rejected. The next ubatch first replays the accepted tokens, in the same steps and
// with bitwise the same results, and then processes its own tokens. So rewinding only reduces the number of tokens to
// replay. The method is that of ReplaySSM (https://github.com/vllm-project/vllm/pull/47576); the formulas are those of
// ggml_gated_delta_net.
//
// The inputs of the convolution before a delta net are stored in the same way; the convolution needs those of the last
// tokens in any case.
#pragma once

#include "own_tensors.h"

#include "llama.h"

#include <map>
#include <vector>

class llama_memory_recurrent;
struct llama_model;
struct llama_ubatch;

class pymtp_replay {
public:
    // max_rewind: largest number of tokens that can be rewound. Throws when there is no memory.
    pymtp_replay(const llama_model & model, llama_memory_recurrent & states, uint32_t n_seq_max, uint32_t max_rewind);

    // The stored inputs of a layer. Each sequence has n adjacent rows, used as a ring: the token at pos uses row pos %
    // n of the sequence.
    struct layer {
        ggml_tensor * conv = nullptr; // inputs of the convolution, F32 [n_channels, n*n_seq_max]
        // Inputs of the delta net, F32 [n_inputs, n*n_seq_max + 1]: k, v, g and beta of a token, each for all heads.
        // The last row is zeros. Null if no token can be rewound.
        ggml_tensor * net = nullptr;
        bool on_host      = false;
    };
    const layer & layer_at(int il) const { return layers[il]; }
    bool on_host() const;

    // Return the row of the token at pos; pos may be negative for the convolution, whose rows before the first token
    // hold zeros. net_zeros() returns the row of zeros.
    int32_t conv_row(llama_seq_id seq, llama_pos pos) const { return seq*n_conv + (pos + n_conv) % n_conv; }
    int32_t net_row(llama_seq_id seq, llama_pos pos) const { return seq*max_pending() + pos % max_pending(); }
    int32_t net_zeros() const { return n_seq_max*max_pending(); }

    // A range of bytes in a tensor. The state of a sequence that has a cell consists of such ranges and of its entry in
    // `sequences`.
    struct part {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        size;
    };
    std::vector<part> all_parts(llama_seq_id seq) const;

    // Returns the ranges that a sequence of n tokens needs in order to continue: for each layer, the state, which lags
    // n_pending tokens behind, the inputs of the convolution before the next token, and the inputs of the delta net to
    // replay. The sizes of the ranges depend only on n_pending.
    std::vector<part> resume_parts(llama_seq_id seq, llama_pos n, int32_t n_pending) const;

    // Returns the number of tokens that a sequence of n tokens has to replay.
    int32_t n_to_replay(llama_seq_id seq, llama_pos n) const { return n - sequences[seq].n_state; }

    // Records that a sequence with a cell holds n tokens. Must be called after the sequence's resume_parts() were
    // written.
    void set_position(llama_seq_id seq, llama_pos n, int32_t n_pending) {
        sequences[seq] = { n - n_pending, n_pending };
    }

    // Returns whether a ubatch with n_seq_tokens tokens for each sequence leaves the states as they were before these
    // tokens.
    bool defers_state(int32_t n_seq_tokens) const { return n_seq_tokens > 1 && n_seq_tokens <= 1 + max_rewind; }

    // Fills the state and the stored inputs of a sequence with zeros, before its first token. The sequence must have a
    // cell, and no graph must be running.
    void clear(llama_seq_id seq);

    // Updates the entries in `sequences` before a ubatch. Returns whether any sequence of the ubatch has tokens to
    // replay. Throws when a sequence does not continue after its last token.
    bool begin_ubatch(const llama_ubatch & ubatch);

    // Returns how many tokens of a sequence the current ubatch replays before it processes its own.
    int32_t n_pending(llama_seq_id seq) const { return sequences[seq].n_pending; }

    // Copies the entry in `sequences`. Must be called after all_parts() of the sequence were copied.
    void copy(llama_seq_id from, llama_seq_id to) { sequences[to] = sequences[from]; }

    // Removes all but the first n_keep tokens of a sequence. Returns false, and changes nothing, when the state already
    // includes later tokens.
    bool rewind(llama_seq_id seq, llama_pos n_keep);

    // Returns the largest number of tokens that a sequence may have to replay.
    int32_t max_pending() const { return 1 + max_rewind; }

    void add_bytes(pymtp_bytes_by_buffer & sum) const;

    const int32_t max_rewind;

private:
    const llama_model &      model;
    llama_memory_recurrent & states;

    const int32_t n_seq_max;
    const int32_t n_conv; // rows of the convolution's inputs for each sequence: the kernel's width - 1, plus max_rewind

    struct sequence {
        llama_pos n_state   = 0; // number of tokens that the state includes
        int32_t   n_pending = 0;
    };
    std::vector<sequence> sequences;
    std::vector<layer>    layers;

    std::map<ggml_backend_buffer_type_t, pymtp_own_tensors> tensors; // one group for each type of buffer
};

// Assigns to an empty sequence the recurrent cell that has the sequence's number, if that cell is free.
//
// Without this, llama.cpp would assign the next free cell, and swap cells during a decode until those of the ubatch are
// adjacent and in order. A swap can assign another cell to a sequence that is not in the ubatch, although the
// sequence's state stays where it was. Our ubatches consist of consecutive sequences, so cells that have the numbers of
// their sequences are never swapped.
void pymtp_assign_state_cell(llama_memory_recurrent & states, llama_seq_id seq);
