// Rewinds recurrent layers after drafts were rejected: a sequence has one state, and the layer inputs of its last
// tokens.
//
// A ubatch of a few tokens for each sequence, some of which may be rejected, leaves the state as it was before these
// tokens and stores their inputs. The next ubatch first replays the accepted tokens, in the same steps and with the
// same bits, and then processes its own. Rewinding only reduces the number of tokens to replay. The method is that of
// ReplaySSM (https://github.com/vllm-project/vllm/pull/47576); the formulas are those of ggml_gated_delta_net.
//
// The convolution before a delta net needs the inputs of the last tokens anyway: they are stored in the same way.
#pragma once

#include "ggml-cpp.h"
#include "llama.h"

#include <map>
#include <vector>

class llama_memory_recurrent;
struct llama_model;
struct llama_ubatch;

class pymtp_replay {
public:
    // max_rewind: the number of tokens that can be rewound. Throws when there is no memory.
    pymtp_replay(const llama_model & model, llama_memory_recurrent & states, uint32_t n_seq_max, uint32_t max_rewind);

    // The stored inputs of a layer. A sequence has n adjacent rows, used as a ring: the token at pos uses row pos % n
    // of them.
    struct layer {
        ggml_tensor * conv = nullptr; // F32 [n_channels, n*n_seq_max] inputs of the convolution
        // F32 [n_inputs, n*n_seq_max + 1] inputs of the delta net: k and v of a token for all heads, then g, then
        // beta. The last row is zeros. Null when no token can be rewound.
        ggml_tensor * net = nullptr;
        bool on_host      = false;
    };
    const layer & layer_at(int il) const { return layers[il]; }
    bool on_host() const;

    // rows before the first token hold zeros
    int32_t conv_row(llama_seq_id seq, llama_pos pos) const { return seq*n_conv + (pos + n_conv) % n_conv; }
    int32_t net_row(llama_seq_id seq, llama_pos pos) const { return seq*max_pending() + pos % max_pending(); }
    int32_t net_zeros() const { return n_seq_max*max_pending(); }

    // A range of a tensor. A sequence that has a cell consists of such ranges and of its entry in `sequences`.
    struct part {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        size;
    };
    std::vector<part> all_parts(llama_seq_id seq) const;

    // Returns the ranges that a sequence of n tokens needs in order to continue: for each layer the state (which lags
    // n_pending tokens behind), the convolution's inputs before the next token, and the delta net's inputs to replay.
    // Their sizes depend only on n_pending.
    std::vector<part> resume_parts(llama_seq_id seq, llama_pos n, int32_t n_pending) const;

    // Returns how many tokens a sequence of n tokens has to replay.
    int32_t n_to_replay(llama_seq_id seq, llama_pos n) const { return n - sequences[seq].n_state; }

    // Declares that a sequence with a cell holds n tokens, after its resume_parts were written.
    void set_position(llama_seq_id seq, llama_pos n, int32_t n_pending) {
        sequences[seq] = { n - n_pending, n_pending };
    }

    // Tells whether a ubatch with so many tokens for each sequence leaves the state as it was before them.
    bool defers_state(int32_t n_seq_tokens) const { return n_seq_tokens > 1 && n_seq_tokens <= 1 + max_rewind; }

    // Zeroes a sequence that has a cell, before its first token. No graph may be running.
    void clear(llama_seq_id seq);

    // Updates the bookkeeping before a ubatch. Returns whether any of its sequences has tokens to replay. Throws when
    // a sequence does not continue at its last token.
    bool begin_ubatch(const llama_ubatch & ubatch);

    // Returns how many tokens the current ubatch replays first.
    int32_t n_pending(llama_seq_id seq) const { return sequences[seq].n_pending; }

    // Copies the bookkeeping after all_parts were copied.
    void copy(llama_seq_id from, llama_seq_id to) { sequences[to] = sequences[from]; }

    // Keeps the first n_keep tokens of a sequence. Returns false, and changes nothing, when its state is already past
    // them.
    bool rewind(llama_seq_id seq, llama_pos n_keep);

    // returns the largest number of tokens that a sequence may have to replay
    int32_t max_pending() const { return 1 + max_rewind; }

    std::map<ggml_backend_buffer_type_t, size_t> bytes() const;

    const int32_t max_rewind;

private:
    const llama_model &      model;
    llama_memory_recurrent & states;

    const int32_t n_seq_max;
    const int32_t n_conv; // rows for each sequence: the kernel's width - 1, plus max_rewind

    struct sequence {
        llama_pos n_state   = 0; // tokens that the state includes
        int32_t   n_pending = 0;
    };
    std::vector<sequence> sequences;
    std::vector<layer>    layers;

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> buffers;
};
