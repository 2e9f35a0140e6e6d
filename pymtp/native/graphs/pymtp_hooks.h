// The hooks: functions that our patches make llama.cpp call, and the settings that our patches add to llama_cparams.
// llama-cparams.h includes this file, so that all of llama.cpp sees it.
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
    PYMTP_SAMPLE_NONE       = 0, // no sampling: logits are copied to the output buffer
    PYMTP_SAMPLE_ROW        = 1, // a callback samples from the whole row of logits
    PYMTP_SAMPLE_CANDIDATES = 2, // a callback samples from the n_candidates highest logits
    // the graph takes the token with the highest logit (of equal logits, the first), without a callback
    PYMTP_SAMPLE_ARGMAX     = 3,
};

// Our settings that a graph depends on. They are part of llama_cparams, and each graph keeps a copy of these.
struct pymtp_graph_settings {
    pymtp_extension * extension = nullptr; // the context's extension; null: llama.cpp builds its own graphs

    bool pre_norm = false; // whether the head gets hidden states from before the final norm

    // For a target context: the tensor that its graphs write pending hidden states to. Unless `deferred` is set, its
    // graphs also fill the draft context's cache.
    ggml_tensor * pending_hidden = nullptr;
    bool          deferred       = false;

    // For a draft context: the target's tensor of pending hidden states, which tokens are combined with.
    ggml_tensor * take_hidden = nullptr;

    const pymtp_replay * replay = nullptr; // our memory of recurrent layers; null: llama.cpp's own is used
    bool has_replay = true;                // whether a sequence may have tokens to replay
    bool device_ops = false;               // for tests: whether the CPU uses the operations that other devices use

    // For a draft context: the reduced output layer; null: the whole output layer is used.
    const pymtp_reduced_output * reduced_output = nullptr;

    pymtp_sample_kind sample       = PYMTP_SAMPLE_NONE;
    int32_t           n_candidates = 0;
    bool              probs        = false;
};

// A head in separate files that is to become part of a model. If `paths` is empty, the model is loaded without a head,
// even if its keys announce one.
struct pymtp_head_files {
    std::vector<std::string> paths; // all files of the head

    // The tensors to add: maps each name in the files to the name that the tensor gets in the model.
    std::map<std::string, std::string> names;

    int32_t block = 0; // number of the head's block in the model, which equals the number of the trunk's blocks
};

// The key of the metadata override that passes a pymtp_head_files to the loader: its integer value is the address of
// the object, which must live until the model is made.
constexpr char PYMTP_HEAD_KEY[] = "pymtp.head";

// ── called while a model is loaded ──

// If the override PYMTP_HEAD_KEY is set, adds the head's tensors to those that the loader has found in the model's
// files, removes the tensors of any other head, and corrects the keys. Throws std::runtime_error when the files cannot
// be read or have changed.
void pymtp_join_head(llama_model_loader & ml);

// ── called by llama_context ──

// Called instead of mctx.apply(). Throws when the call is aborted, or when the draft context's cache has no room for
// the ubatch.
bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx);

// Returns whether graphs with the settings a and b have the same topology, as far as it depends on our settings.
bool pymtp_same_graph(const llama_cparams & a, const llama_cparams & b);

// ── called while graphs are built ──

// Called instead of model.build_arch_graph(params).
std::unique_ptr<llm_graph_context> pymtp_build_graph(const llama_model & model, const llm_graph_params & params);

// Builds the part after the last layer of the graphs of qwen35, qwen35moe and qwen3next. Returns false if llama.cpp's
// own code must build it.
bool pymtp_end_trunk(
        const llm_graph_context & graph, const llama_model & model, ggml_tensor * cur, ggml_tensor * inp_pos,
        ggml_tensor * out_ids);

// The three functions below build the nodes that read and write the memory of a delta net layer, for contexts with a
// pymtp_replay. For other contexts they return null, and llama.cpp's own code builds the nodes.

// Called instead of build_rs(). Returns a view of the states of the n_seqs cells from `head` on, without copying them.
// s_copy: the input with the cells that llama.cpp's own graph would copy the states from
ggml_tensor * pymtp_state_in_place(
        const llm_graph_context & graph, ggml_tensor * s_copy, ggml_tensor * states, int64_t n_seqs, uint32_t head);

// Called instead of build_conv_state(). Returns the convolution's inputs of the previous tokens, followed by those of
// the new tokens: [n, n_channels, n_seqs].
ggml_tensor * pymtp_build_conv_input(const llm_graph_context & graph, ggml_tensor * inputs, int il);

// Called instead of build_recurrent_attn(). Returns the output of the delta net: [head_v_dim, n_v_heads, n_seq_tokens,
// n_seqs].
ggml_tensor * pymtp_build_delta_net(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g,
        ggml_tensor * beta, ggml_tensor * state, int il);

// ── called by llama_memory_recurrent ──

// Allocates the tensors of ctx. With no_alloc, they get a placeholder buffer without memory.
// Returns null when there is not enough memory.
ggml_backend_buffer_t pymtp_alloc_tensors(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc);
