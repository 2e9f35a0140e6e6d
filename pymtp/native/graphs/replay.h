// How drafts are taken back in recurrent layers: a sequence has one state, and the inputs of its last tokens.
//
// A ubatch of a few tokens a sequence, of which some may be taken back, leaves the state as it was before them and keeps what
// they bring to the layer. The next ubatch takes those that were accepted through the layer again, in the same steps and
// with the same bits, and then its own tokens. To take tokens back is to count fewer. The method is that of ReplaySSM
// (https://github.com/vllm-project/vllm/pull/47576); the formulas are those of ggml_gated_delta_net.
//
// The convolution in front of a delta net needs the inputs of the last tokens anyway: these are kept in the same way.
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
    // Up to n_back tokens can be taken back. Throws where there is no memory.
    pymtp_replay(const llama_model & model, llama_memory_recurrent & states, uint32_t n_seq_max, uint32_t n_back);

    // What a layer keeps. A sequence has n rows side by side: the input of the token at pos is in row pos % n of these.
    struct layer {
        ggml_tensor * conv = nullptr; // F32 [n_channels, n*n_seq_max] inputs of the convolution
        ggml_tensor * net  = nullptr; // F32 [n_inputs, n*n_seq_max + 1] a token's k and v for all heads, then g, then beta. The
                                      // last row is zeros. Null: none is kept
        bool on_host = false;
    };
    const layer & of(int il) const { return layers[il]; }
    bool on_host() const;

    // of tokens before the first, zeros
    int32_t conv_row(llama_seq_id seq, llama_pos pos) const { return seq*n_conv + (pos + n_conv) % n_conv; }
    int32_t net_row(llama_seq_id seq, llama_pos pos) const { return seq*most_pending() + pos % most_pending(); }
    int32_t net_zeros() const { return n_seq_max*most_pending(); }

    // Everything that recurrent layers hold of a sequence which has a cell, beside the two numbers in `sequences`.
    struct part {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        size;
    };
    std::vector<part> parts(llama_seq_id seq) const;

    // What of it a sequence of n tokens goes on from: of each layer the state, which is n_pending tokens behind, the inputs of
    // the convolution before the next token, and those of the delta net to replay. The sizes depend on n_pending alone.
    std::vector<part> parts_to_go_on(llama_seq_id seq, llama_pos n, int32_t n_pending) const;

    // How many tokens a sequence of n has to replay.
    int32_t n_behind(llama_seq_id seq, llama_pos n) const { return n - sequences[seq].n_state; }

    // A sequence that has a cell holds n tokens: these parts were set.
    void begin_at(llama_seq_id seq, llama_pos n, int32_t n_pending) { sequences[seq] = { n - n_pending, n_pending }; }

    // Whether a ubatch of so many tokens a sequence leaves the state before them.
    bool keeps(int32_t n_seq_tokens) const { return n_seq_tokens > 1 && n_seq_tokens <= 1 + n_back; }

    // A sequence that has a cell begins: with zeros. No graph may still be computed.
    void clear(llama_seq_id seq);

    // Before a ubatch. Returns whether any of its sequences has tokens to replay. Throws where one does not go on from its
    // last token.
    bool begin(const llama_ubatch & ubatch);

    // How many tokens the ubatch that began takes through the delta nets first.
    int32_t n_pending(llama_seq_id seq) const { return sequences[seq].n_pending; }

    // A sequence that has a cell holds what another does, whose parts were copied.
    void copy(llama_seq_id from, llama_seq_id to) { sequences[to] = sequences[from]; }

    // Keeps the first n_keep of the n tokens of a sequence. False, and nothing is changed, where its state is past that.
    bool rewind(llama_seq_id seq, llama_pos n_keep);

    // the most tokens that a sequence may have to replay
    int32_t most_pending() const { return 1 + n_back; }

    std::map<ggml_backend_buffer_type_t, size_t> bytes() const;

    const int32_t n_back;

private:
    const llama_model &      model;
    llama_memory_recurrent & states;

    const int32_t n_seq_max;
    const int32_t n_conv; // the inputs before the first token that stays, and of the others

    struct sequence {
        llama_pos n_state   = 0; // the tokens that the state is of
        int32_t   n_pending = 0;
    };
    std::vector<sequence> sequences;
    std::vector<layer>    layers;

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> buffers;
};
