// Functions on a llama_context that the runtime uses beside those of llama.h. The first call attaches an extension to
// the context, which lives as long as the context. Functions throw where llama.cpp throws, and where noted.
#pragma once

#include "image_runs.h"
#include "pymtp_hooks.h"

#include "llama.h"

#include <map>
#include <string>

// ── batches ──

// Decodes a batch like llama_decode, but with the graph and the compute buffer of a slot. The slot's graph is reused
// when the previous batch in the slot had the same shape, so shapes that alternate should have different slots. Slots
// above 0 are for small batches. Throws when the batch exceeds the context's limits or contradicts its settings.
int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot);

// Reserves the compute buffers anew if a setting has changed since they were reserved.
void pymtp_reserve(llama_context * ctx);

// ── the head ──

// Sets whether hidden states are taken from before (pre_norm) or after the final norm. A target's hidden states go to
// the head; in a draft context, the head's block gets its own hidden states in the next draft step.
void pymtp_set_tap(llama_context * ctx, bool pre_norm);

// Turns fused sync on, or off if draft is NULL. With fused sync, every ubatch of ctx also writes K and V of its tokens
// to the cache of draft, without a hidden state leaving the device. For this, each token is combined with the hidden
// state of the token before it in its sequence, and the first token with zeros.
// draft: an MTP context of the same model, which must hold the same tokens as ctx, and must not run at the same time.
// Throws when it is another kind of context.
// deferred: ctx only stores the hidden states, and a later batch of draft processes up to 63 of them. Only for batches
// of one token per sequence.
void pymtp_set_fused_sync(llama_context * ctx, llama_context * draft, bool deferred);

// Write and read, on the device, the pending hidden state of n_embd floats that the token at pos is combined with. The
// device has the hidden states of the last ubatch's tokens that can be rewound; of a prompt, only that of the last
// token. pymtp_set_fused_sync must have been called before.
void pymtp_set_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row);
void pymtp_get_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos,       float * row);

// Makes batches of ctx, a draft context, read the hidden states that fused sync has left pending in target, until
// target is set to NULL. Each batch must be one ubatch without outputs. Throws when target has no pending hidden
// states.
// Without sampling, a batch only writes K and V. With sampling, a batch is a chain of draft steps: it holds adjacent
// sequences, with one token for each step. The first token of each sequence is combined with its pending hidden state.
// Each step samples the token for the next step, which is combined with the block's own hidden state; the tokens in the
// batch after the first one are ignored.
void pymtp_use_pending_hidden(llama_context * ctx, llama_context * target);

// ── images ──

// Makes the positions of tokens for RoPE depend on the images of their sequences. An image must be of a model with
// M-RoPE. images_of: returns the images of a sequence, and is called whenever a batch of ctx is decoded
void pymtp_set_images(llama_context * ctx, pymtp_images_of images_of);

// ── rewinding ──

// Makes the recurrent layers of a target keep one state for each sequence, and the inputs of its last tokens, so that
// up to max_rewind tokens can be rewound. Must be called before the first batch. Throws when there is no memory.
void pymtp_make_replay(llama_context * ctx, uint32_t max_rewind);

// For tests: sets whether recurrent layers in host memory are computed with llama.cpp's operations, as on a GPU.
void pymtp_force_device_ops(llama_context * ctx, bool value);

// Removes all but the first n_keep tokens of a sequence. Returns false, and changes nothing, when the recurrent state
// already includes later tokens. In the sequence's last ubatch, all tokens after the first can be rewound, if there are
// at most max_rewind of them.
bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep);

// ── copies ──

// Copies the first n_tokens tokens of the sequence `from` to the empty sequence `to`: K and V of the tokens, the
// recurrent states, and the pending hidden states that the tokens from n_head on are combined with. `to` cannot be
// rewound. Returns the number of bytes copied, or -1 when the abort callback stopped the copy. In that case, and after
// an exception, the caller must clear `to`.
int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens,
        llama_pos n_head);

// Copies K and V of the tokens first to first + n - 1 of the sequence `from` to the cells with the same numbers of the
// sequence `to`, which counts as empty until pymtp_load_state. Returns the number of bytes copied, or -1 when the abort
// callback stopped the copy.
int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n);

// ── to and from the host ──
//
// In this section, the functions that return bool and copy data return false when the abort callback stopped them.

// Returns the number of bytes that K and V of one token take when saved: layer by layer, K before V, with V never
// transposed.
size_t pymtp_cell_bytes(llama_context * ctx);

// The properties that the bytes of saved K and V depend on, beside model and tokens.
struct pymtp_kv_format {
    ggml_type type_k;
    ggml_type type_v;
    bool      flash_attn;
};

pymtp_kv_format pymtp_get_kv_format(llama_context * ctx);

// Returns how many of the model's tensors are in each kind of buffer, such as "120 CPU, 80 CPU_REPACK".
std::string pymtp_weight_buffers(llama_context * ctx);

// Returns whether the first n tokens of a sequence are in the first n cells of its stream, in order.
bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n);

// Save and load K and V of the tokens first to first + n - 1. In `data`, the bytes of consecutive tokens start `stride`
// bytes apart. Loading writes to the cells with the tokens' numbers, in a sequence that counts as empty until
// pymtp_load_state.
bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n,       uint8_t * data,
        size_t stride);
bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data,
        size_t stride);

// Save the state of the recurrent layers after n_tokens tokens of a sequence. It consists of states that lag n_replay
// tokens behind, and the inputs of these n_replay tokens.
// pymtp_n_to_replay returns n_replay of a sequence; pymtp_max_to_replay returns the largest n_replay that can be
// loaded; pymtp_state_bytes returns the size of a state, which is 0 for a model without recurrent layers;
// pymtp_save_state writes the state to `data`.
int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens);
int32_t pymtp_max_to_replay(llama_context * ctx);
size_t  pymtp_state_bytes(llama_context * ctx, int32_t n_replay);
bool    pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data);

// Adds n tokens to an empty sequence, whose first n cells must already contain their K and V, and loads the state of
// the recurrent layers. The sequence cannot be rewound. When the function returns false or throws, the caller must
// clear the sequence.
bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay,
        const uint8_t * data);

// ── sampling in the graph ──

// Samples a token from a row of n logits. ids: the token of each logit, in any order; null if the logits are those of
// the whole vocabulary
typedef llama_token (*pymtp_sample_callback)(
        void * user_data, int32_t row, const float * logits, const llama_token * ids, int32_t n);

struct pymtp_graph_sample {
    pymtp_sample_kind kind = PYMTP_SAMPLE_NONE;

    int32_t n_candidates = 0;
    bool    probs        = false; // for argmax: pymtp_get_sampled returns probabilities instead of logits

    // The callback runs on threads of the host, and must not throw. One thread processes a group of rows_per_task
    // adjacent rows, in order. In a chain, each step has one row for each sequence, counted from 0.
    pymtp_sample_callback callback      = nullptr;
    void *                user_data     = nullptr;
    int32_t               rows_per_task = 1;
};

// Sets how graphs of ctx sample. Unless the kind is PYMTP_SAMPLE_NONE, graphs end with sampling a token from each row
// of logits. Logits are then not copied to llama.cpp's output buffer, so llama_get_logits has none; they stay on their
// device unless a callback reads them.
void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & sample);

// Waits for the last batch, and returns its argmax samples: n tokens, and the logit or probability of each in `values`.
// A value is not finite if one of the row's logits is NaN or the highest is infinite. Throws when the batch was not
// sampled by argmax, or has not n samples.
void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n);

// ── the draft vocabulary ──

// numbers of rows must be a multiple of this, because backends repack weights in groups of up to 32 rows
constexpr int32_t PYMTP_ROW_MULTIPLE = 64;

// Returns the output layer that drafts use: the head's own if it has one, otherwise the model's.
ggml_tensor * pymtp_draft_output_layer(const llama_model & model);

// Allocates a reduced output layer of n_main + n_recent rows in a draft context. Both numbers must be multiples of
// PYMTP_ROW_MULTIPLE.
void pymtp_make_reduced_output(llama_context * ctx, int32_t n_main, int32_t n_recent);

// Writes rows of the reduced output layer.
// tokens: the token of each row, for all rows.
// only_recent: whether to write only the n_recent recent rows.
// data: the rows to write, in the format of the model's file
void pymtp_set_reduced_output(llama_context * ctx, const llama_token * tokens, bool only_recent, const void * data);

// Sets whether drafts use the reduced output layer. If so, logits, candidates and samples exist only for its tokens.
void pymtp_use_reduced_output(llama_context * ctx, bool value);

// ── statistics ──

// The bytes that a context has copied from devices to the host, by kind of content.
struct pymtp_output_bytes {
    int64_t logits     = 0;
    int64_t embeddings = 0;
    int64_t hidden     = 0; // hidden states for the head
    // logits that callbacks have read, also if they were in host memory, and tokens that argmax has sampled
    int64_t samples = 0;
    int64_t buffer  = 0; // not a sum: size of the host buffer that logits and embeddings are copied to
};

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx);

using pymtp_bytes_by_buffer = std::map<ggml_backend_buffer_type_t, size_t>;

// The memory that a context and its model use, by purpose. If the model was made without memory, the memory that they
// would use.
struct pymtp_memory_parts {
    pymtp_bytes_by_buffer weights;
    pymtp_bytes_by_buffer kv;
    pymtp_bytes_by_buffer states;         // recurrent states, and the stored inputs of the last tokens
    pymtp_bytes_by_buffer pending_hidden; // pending hidden states
    pymtp_bytes_by_buffer reduced_output;
    pymtp_bytes_by_buffer compute; // compute buffers of all slots
};

pymtp_memory_parts pymtp_get_memory(llama_context * ctx);

// Returns the size that a slot's compute buffer would have for batches of n_seqs sequences with n tokens each, when the
// caches are full.
pymtp_bytes_by_buffer pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n);
