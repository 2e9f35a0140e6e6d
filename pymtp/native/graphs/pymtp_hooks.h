// What the patches in llama.cpp's files call, and the one struct they carry for us. llama-cparams.h includes this, so that
// all of llama sees it.
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
class pymtp_output_rows;
class pymtp_replay;

enum pymtp_sample_kind {
    PYMTP_SAMPLE_NONE       = 0, // logits are copied out
    PYMTP_SAMPLE_ROW        = 1, // a callback samples from the whole row
    PYMTP_SAMPLE_CANDIDATES = 2, // a callback samples from the n_candidates highest logits
    PYMTP_SAMPLE_ARGMAX     = 3, // the token with the highest logit, the first of equals: nothing is called
};

// What a graph depends on beside llama.cpp's own settings. It lies in llama_cparams, of which each graph keeps a copy.
struct pymtp_graph_settings {
    pymtp_extension * extension = nullptr; // null: the graphs are llama.cpp's own

    bool pre_norm = false; // the head takes hidden states from before the final norm

    ggml_tensor * sync_rows = nullptr; // of a target: its graphs fill the draft context's cache, and keep hidden states here
    bool          defer     = false;   // with sync_rows: keep the hidden states, and no more
    ggml_tensor * take_rows = nullptr; // of a draft context: its tokens go with hidden states kept here

    const pymtp_replay * replay = nullptr; // the memory of recurrent layers; null: llama.cpp's own
    bool replays    = true;                // whether a sequence has tokens to replay
    bool as_devices = false;               // where the memory is the host's, compute as where it is not

    const pymtp_output_rows * output_rows = nullptr; // of a draft context: what its logits are made with; null: all rows

    pymtp_sample_kind sample       = PYMTP_SAMPLE_NONE;
    int32_t           n_candidates = 0;
    bool              probs        = false;
};

// A head in files of its own, which is to be a part of a model; or that a model has none, whatever its keys say.
struct pymtp_head_files {
    std::vector<std::string> paths; // of all parts; none where there is no head

    // the tensors to take: their names in the files, and in the model
    std::map<std::string, std::string> names;

    int32_t block = 0; // its number in the model: that of the trunk's blocks
};

// The key of an override of metadata whose number is the address of a pymtp_head_files. It must live until the model is made.
constexpr char PYMTP_HEAD_KEY[] = "pymtp.head";

// ── called while a model is loaded ──

// Where an override says so: adds the tensors of a head to those that the loader found in the model's files, and leaves out what
// is of another head there; the keys say so, too. Throws std::runtime_error where the files cannot be read, or have become others.
void pymtp_join_head(llama_model_loader & ml);

// ── called by llama_context ──

// In place of mctx.apply(). Throws where a ubatch cannot begin: cancelled, or no room in the draft context's cache.
bool pymtp_apply(const llama_cparams & cparams, const llama_ubatch & ubatch, llama_memory_context_i & mctx);

// Whether graphs of both have the same topology, as far as it depends on our settings.
bool pymtp_same_graph(const llama_cparams & one, const llama_cparams & other);

// ── called while graphs are built ──

// In place of model.build_arch_graph(params).
std::unique_ptr<llm_graph_context> pymtp_build_graph(const llama_model & model, const llm_graph_params & params);

// Ends the trunk of qwen35, qwen35moe and qwen3next after the last layer. False where llama.cpp's own end is to follow.
bool pymtp_end_trunk(
        const llm_graph_context & graph, const llama_model & model, ggml_tensor * cur, ggml_tensor * inp_pos, ggml_tensor * out_ids);

// The three below build what reads and writes the memory of a delta net's layer, for contexts that have a pymtp_replay. Null
// where llama.cpp's own graph is to follow.

// In place of build_rs(): the states of n_seqs cells from head on, where they lie. s_copy is the input that says where
// llama.cpp's own graph copies them from.
ggml_tensor * pymtp_state_in_place(
        const llm_graph_context & graph, ggml_tensor * s_copy, ggml_tensor * states, int64_t n_seqs, uint32_t head);

// In place of build_conv_state(): the inputs of the tokens before, and then of these, [n, n_channels, n_seqs].
ggml_tensor * pymtp_build_conv_input(const llm_graph_context & graph, ggml_tensor * inputs, int il);

// In place of build_recurrent_attn(): the output, [head_v_dim, n_v_heads, n_seq_tokens, n_seqs].
ggml_tensor * pymtp_build_delta_net(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * g, ggml_tensor * beta,
        ggml_tensor * state, int il);

// ── called by llama_memory_recurrent ──

// Memory for the states in ctx; without memory, a buffer that stands for it. Null when there is not enough.
ggml_backend_buffer_t pymtp_alloc_states(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool no_alloc);
