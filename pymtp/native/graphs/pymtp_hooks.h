// The functions that the patches in llama.cpp call, and the settings struct that they carry. llama-cparams.h includes
// this file, so that all of llama sees it.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct ggml_context;
struct ggml_tensor;
struct llama_cparams;
struct llama_memory_context_i;
struct llama_model;
struct llama_model_loader;
struct llama_ubatch;
struct llm_graph_context;
struct llm_graph_params;
struct pymtp_extension;
class pymtp_reduced_output;
class pymtp_replay;

enum pymtp_sample_kind {
    PYMTP_SAMPLE_NONE       = 0, // logits are copied out
    PYMTP_SAMPLE_ROW        = 1, // a callback samples from the whole row
    PYMTP_SAMPLE_CANDIDATES = 2, // a callback samples from the n_candidates highest logits
    PYMTP_SAMPLE_ARGMAX     = 3, // the graph takes the token with the highest logit, the first of equals; no callback
};

// The settings that a graph depends on beside llama.cpp's own. They are part of llama_cparams, of which each graph
// keeps a copy.
struct pymtp_graph_settings {
    pymtp_extension * extension = nullptr; // null: the graphs are llama.cpp's own

    bool pre_norm = false; // the head gets hidden states from before the final norm

    // target: its graphs fill the draft context's cache and write hidden states here; with `deferred` they
    // do only the latter
    ggml_tensor * pending_hidden = nullptr;
    bool          deferred       = false;

    // draft context: its tokens are combined with the hidden states in this tensor of the target
    ggml_tensor * take_hidden = nullptr;

    const pymtp_replay * replay = nullptr; // the memory of recurrent layers; null: llama.cpp's own
    bool has_replay = true;                // a sequence may have tokens to replay
    bool device_ops = false;               // for tests: on the CPU, use the operations that other devices use

    // draft context: the reduced output layer; null: the whole one
    const pymtp_reduced_output * reduced_output = nullptr;

    pymtp_sample_kind sample       = PYMTP_SAMPLE_NONE;
    int32_t           n_candidates = 0;
    bool              probs        = false;
};

// A head in separate files that is to become part of a model. Without paths: the model has no head, whatever its keys
// say.
struct pymtp_head_files {
    std::vector<std::string> paths; // all parts

    // the tensors to add: names in the files, and the names that they get in the model
    std::map<std::string, std::string> names;

    int32_t block = 0; // the index of the head's block in the model: the number of trunk blocks
};

// The key of a metadata override whose integer is the address of a pymtp_head_files, which must live until the model
// is made.
constexpr char PYMTP_HEAD_KEY[] = "pymtp.head";

// ── called while a model is loaded ──

// When such an override is set: adds the head's tensors to those that the loader found in the model's files, removes
// those of another head there, and corrects the keys. Throws std::runtime_error when the files cannot be read or have
// changed.
void pymtp_join_head(llama_model_loader & ml);

// ── called by llama_context ──

// Replaces mctx.apply(). Throws when the ubatch is aborted, or when the draft context's cache has no room for it.
bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx);

// Tells whether two graphs have the same topology, as far as our settings decide it.
bool pymtp_same_graph(const llama_cparams & a, const llama_cparams & b);

// ── called while graphs are built ──

// Replaces model.build_arch_graph(params).
std::unique_ptr<llm_graph_context> pymtp_build_graph(const llama_model & model, const llm_graph_params & params);

// Builds the rest of the graphs of qwen35, qwen35moe and qwen3next after the last layer. Returns false when
// llama.cpp's own code shall do so.
bool pymtp_end_trunk(
        const llm_graph_context & graph, const llama_model & model, ggml_tensor * cur, ggml_tensor * inp_pos,
        ggml_tensor * out_ids);

// The three functions below build the access to a delta net layer's memory, for contexts with a pymtp_replay. They
// return null when llama.cpp's own code shall do so.

// Replaces build_rs(): returns a view of the states of n_seqs cells from head on, in place. s_copy: the input with the
// cells that llama.cpp's own graph would copy them from
ggml_tensor * pymtp_state_in_place(
        const llm_graph_context & graph, ggml_tensor * s_copy, ggml_tensor * states, int64_t n_seqs, uint32_t head);

// Replaces build_conv_state(): returns the inputs of the previous tokens followed by the new ones, [n, n_channels,
// n_seqs].
ggml_tensor * pymtp_build_conv_input(const llm_graph_context & graph, ggml_tensor * inputs, int il);

// Replaces build_recurrent_attn(): returns the output, [head_v_dim, n_v_heads, n_seq_tokens, n_seqs].
ggml_tensor * pymtp_build_delta_net(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
        ggml_tensor * beta, ggml_tensor * state, int il);

// ── called by llama_memory_recurrent ──

// Allocates the states in ctx; with no_alloc, a placeholder buffer without memory. Returns null when there is not
// enough memory.
ggml_backend_buffer_t pymtp_alloc_states(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc);
