// The runtime's interface to a llama_context, beside llama.h. The first call attaches an extension to the context,
// which lives as long as the context. Functions throw where llama.cpp throws, and where noted.
#pragma once

#include "pymtp_hooks.h"

#include "llama.h"

#include <map>
#include <string>

// ── batches ──

// Decodes a batch like llama_decode, but with the graph and the compute buffer of a slot. A graph is reused when the
// previous batch in the same slot had the same shape, so give each shape that alternates with others a slot of its
// own. Slots above 0 are for small batches. Throws when the batch does not fit the context's limits or settings.
int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot);

// Reserves compute buffers again when a setting has changed since the context was made.
void pymtp_reserve(llama_context * ctx);

// ── the head ──

// Sets which hidden states the head gets: those before (pre_norm) or after the final norm. In the target these go to
// the head; in a draft context the head's block feeds its own back to itself.
void pymtp_set_tap(llama_context * ctx, bool pre_norm);

// Fused sync. While draft (an MTP context of the same model) is set, every ubatch of ctx also writes K and V of its
// tokens to the cache of draft. Each token is combined with the hidden state of the token before it in its sequence, a
// first token with zeros. No hidden state leaves the device. draft must hold the same tokens as ctx, and must not run
// meanwhile. With deferred, which is for batches of one token a sequence, ctx only stores the hidden states; a later
// batch of draft processes up to 63 of them. Throws when draft is not such a context.
void pymtp_set_fused_sync(llama_context * ctx, llama_context * draft, bool deferred);

// Writes or reads the pending hidden state that the token at pos is combined with: n_embd floats on the device. The
// device keeps those for the tokens of the last ubatch that can be rewound; of a prompt, only the last. Needs an
// earlier pymtp_set_fused_sync.
void pymtp_set_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row);
void pymtp_get_pending_hidden(llama_context * ctx, llama_seq_id seq, llama_pos pos,       float * row);

// While target is set, batches of ctx (a draft context) read the hidden states that fused sync has left pending in
// target. Such a batch is one ubatch without outputs. Without sampling it only stores K and V. With sampling it is a
// chain of draft steps: the batch holds adjacent sequences with one token for each step. The first token of each
// sequence is combined with its pending hidden state; each step then samples the token of the next step, which is
// combined with the block's own hidden state. The batch's later tokens are ignored. Throws when target has no pending
// hidden states.
void pymtp_use_pending_hidden(llama_context * ctx, llama_context * target);

// ── rewinding ──

// Makes recurrent layers keep one state for each sequence and the inputs of its last tokens, so that up to max_rewind
// tokens can be rewound. Call it before a target's first batch. Throws when there is no memory.
void pymtp_make_replay(llama_context * ctx, uint32_t max_rewind);

// For tests: compute recurrent layers in host memory with llama.cpp's operations, as on a GPU.
void pymtp_force_device_ops(llama_context * ctx, bool value);

// Keeps the first n_keep tokens of a sequence. Returns false, and changes nothing, when the recurrent state is already
// past them. All tokens but the first of the sequence's last ubatch can be rewound, if they are at most max_rewind.
bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep);

// ── copies ──

// Copies the first n_tokens of a sequence to an empty one: K and V of these tokens, the recurrent states, and the
// pending hidden states for the tokens from n_head on. Returns the bytes copied, -1 when the abort callback stopped
// it. In that case, and when it throws, clear the target sequence. The copy cannot be rewound.
int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens,
        llama_pos n_head);

// Copies K and V of the tokens first to first + n of a sequence to the cells of the same numbers of another one, which
// stays empty until pymtp_load_state. Returns the same as above.
int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n);

// ── to and from the host ──
//
// Functions that return bool return false when the abort callback stopped them.

// Returns the bytes of one token's K and V: layer by layer, K before V, with V never transposed.
size_t pymtp_cell_bytes(llama_context * ctx);

// The properties, beside the text, that the bytes of K and V depend on.
struct pymtp_kv_format {
    ggml_type type_k;
    ggml_type type_v;
    bool      flash_attn;
};

pymtp_kv_format pymtp_get_kv_format(llama_context * ctx);

// Describes in which kinds of buffers the model's tensors are, such as "120 CPU, 80 CPU_REPACK".
std::string pymtp_weight_buffers(llama_context * ctx);

// Tells whether the first n tokens of a sequence are in the first n cells, in order.
bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n);

// Saves or loads K and V of the tokens first to first + n; one token's bytes start a stride after those of the one
// before. Loading writes to the cells of these numbers in a sequence that stays empty until pymtp_load_state.
bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n,       uint8_t * data,
        size_t stride);
bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data,
        size_t stride);

// The recurrent layers' state after n_tokens of a sequence: states that lag n_replay tokens behind, and the inputs of
// these tokens. The functions return n_replay of a sequence, the largest n_replay that can be loaded, and the bytes (0
// for a model without such layers), and save the state.
int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens);
int32_t pymtp_max_to_replay(llama_context * ctx);
size_t  pymtp_state_bytes(llama_context * ctx, int32_t n_replay);
bool    pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data);

// Makes an empty sequence hold the tokens, whose K and V are in its first n cells already. When it returns false or
// throws, clear the sequence. It cannot be rewound.
bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay,
        const uint8_t * data);

// ── sampling in the graph ──

// Samples a token from n logits of a row. ids: their tokens, in any order; null when the logits cover the vocabulary.
typedef llama_token (*pymtp_sample_callback)(
        void * user_data, int32_t row, const float * logits, const llama_token * ids, int32_t n);

struct pymtp_graph_sample {
    pymtp_sample_kind kind = PYMTP_SAMPLE_NONE;

    int32_t n_candidates = 0;
    bool    probs        = false; // argmax: pymtp_get_sampled returns probabilities instead of logits

    // Runs on threads of the host, and must not throw. Each run of rows_per_task adjacent rows is processed in order
    // by one thread. In a chain, rows are counted from 0 in each step, one row for each sequence.
    pymtp_sample_callback callback      = nullptr;
    void *                user_data     = nullptr;
    int32_t               rows_per_task = 1;
};

// While a kind is set, graphs of ctx end with a token sampled from each row of logits. Logits are not copied out, so
// llama_get_logits has none. Logits that no callback reads stay on their device.
void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & sample);

// Returns the argmax samples of the last batch: n tokens with their logits or probabilities. A value is not finite
// when a logit is NaN or the highest is infinite. Waits for the batch. Throws when the batch was sampled in another
// way, or not n times.
void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n);

// ── the draft vocabulary ──

constexpr int32_t PYMTP_ROW_MULTIPLE = 64; // backends repack weights in groups of up to 32 rows

// Returns the output layer for drafts: the head's own, or the model's.
const ggml_tensor * pymtp_draft_output_layer(const llama_model & model);

// Allocates a reduced output layer in a draft context: n_main + n_recent rows, both multiples of PYMTP_ROW_MULTIPLE.
void pymtp_make_reduced_output(llama_context * ctx, int32_t n_main, int32_t n_recent);

// Writes its rows. tokens: the tokens of all rows, in order. data: the rows in the file's format; with only_recent,
// just the recent rows, and the main rows stay.
void pymtp_set_reduced_output(llama_context * ctx, const llama_token * tokens, bool only_recent, const void * data);

// While set, drafts use only these rows: logits, candidates and samples are for their tokens.
void pymtp_use_reduced_output(llama_context * ctx, bool value);

// ── statistics ──

// Bytes that a context has copied from devices to the host, by content.
struct pymtp_output_bytes {
    int64_t logits     = 0;
    int64_t embeddings = 0;
    int64_t hidden     = 0; // hidden states for a head
    // logits that callbacks read, on whichever device, and tokens that graphs sampled by themselves
    int64_t samples = 0;
    int64_t buffer  = 0; // not a sum: the size of the host buffer that they are copied to
};

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx);

using pymtp_bytes_by_buffer = std::map<ggml_backend_buffer_type_t, size_t>;

// Memory in use, or planned when the model was loaded without memory.
struct pymtp_memory_parts {
    pymtp_bytes_by_buffer weights;
    pymtp_bytes_by_buffer kv;
    pymtp_bytes_by_buffer states;         // recurrent states, and the inputs of the last tokens
    pymtp_bytes_by_buffer pending_hidden; // pending hidden states
    pymtp_bytes_by_buffer reduced_output;
    pymtp_bytes_by_buffer compute; // all slots
};

pymtp_memory_parts pymtp_get_memory(llama_context * ctx);

// Plans the compute buffer of a slot for batches of n tokens in each of n_seqs sequences, with full caches.
pymtp_bytes_by_buffer pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n);
