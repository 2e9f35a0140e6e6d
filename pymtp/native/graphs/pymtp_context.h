// What the runtime may tell and ask a llama_context beside llama.h. The first call gives the context an extension of ours,
// which lives as long as it. Functions throw where llama.cpp does, and where they say so.
#pragma once

#include "pymtp_hooks.h"

#include "llama.h"

#include <map>
#include <string>

// ── batches ──

// As llama_decode, with the graph and the compute buffer of a slot. A graph is used again when the batch before in the same
// slot was of the same kind: with a slot for each kind that comes by turns, none is built anew. Slots past 0 are for small
// batches. Throws when the batch is not what the context was made for, or was set to.
int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot);

// Compute buffers for what the context was told since it was made.
void pymtp_reserve(llama_context * ctx);

// ── the head ──

// The hidden states that the head takes: after the final norm, or before it. Of the target, those that it hands to the
// head; of a draft context, those that the head's block hands back to itself.
void pymtp_set_tap(llama_context * ctx, bool pre_norm);

// While draft, a context of type MTP of the same model, is set, every ubatch of ctx stores the K and V of its tokens in
// the cache of draft as well: each goes with the hidden state of the token before it in its sequence, a first token with
// zeros. No hidden state leaves the device. draft must hold the tokens that ctx holds, and nothing may use it meanwhile.
// With defer, for batches of a token a sequence, hidden states are only kept, for a batch of draft to take the last 63 later.
// Throws when draft is not such a context.
void pymtp_set_sync(llama_context * ctx, llama_context * draft, bool defer);

// The hidden state that the token at a position goes with: n_embd floats, kept on the device. There are those of the last
// ubatch that can be taken back, of a prompt the last one. Needs pymtp_set_sync to have been called once.
void pymtp_set_kept_row(llama_context * ctx, llama_seq_id seq, llama_pos pos, const float * row);
void pymtp_get_kept_row(llama_context * ctx, llama_seq_id seq, llama_pos pos,       float * row);

// While target is set, batches of ctx, a draft context, go with the hidden states that pymtp_set_sync keeps in target: one
// ubatch, without output. Their K and V are stored; that is all, unless tokens are sampled. Then the batch is a chain of
// drafts for each of some sequences side by side, sequence after sequence: as many tokens of each as there are steps, the
// first of which goes with the kept hidden state. Each step samples the tokens of the next, one a sequence in their order,
// which go with what the block leaves; what the batch says of later tokens is not looked at. Throws when nothing is kept in
// target.
void pymtp_take_kept_rows(llama_context * ctx, llama_context * target);

// ── taking back ──

// Recurrent layers keep one state a sequence and the inputs of its last tokens, of which n_back can be taken back: before the
// first batch of a target. Throws where there is no memory.
void pymtp_make_replay(llama_context * ctx, uint32_t n_back);

// For tests: recurrent layers in the host's memory are computed with llama.cpp's operations, as those of a GPU are.
void pymtp_compute_as_devices(llama_context * ctx, bool value);

// Keeps the first n_keep tokens of a sequence. False, and nothing is changed, where recurrent layers hold no state from which
// these can be replayed: of the last ubatch with the sequence all but the first token can be taken back, if they are n_back.
bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep);

// ── copies ──

// Copies the first n_tokens of a sequence to another, which is empty: K and V of these tokens alone, the recurrent states,
// from whichever snapshot counts, and the kept hidden states that the tokens at n_head and after it go with. Returns the bytes,
// -1 where the abort callback asked for the end. The copy cannot be rewound. Then, and where this throws, the other sequence
// may have to be emptied.
int64_t pymtp_copy_sequence(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n_tokens, llama_pos n_head);

// Copies K and V of n tokens of a sequence, from the first on, to the cells of these numbers of another, which is empty and
// stays so until pymtp_load_state. Returns as above.
int64_t pymtp_copy_cells(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos first, int32_t n);

// ── to and from the host ──
//
// The functions that return bool return false where the abort callback asked for the end.

// Bytes of a token's K and V: layer by layer, K before V. Elements are in order, also of a V that is transposed.
size_t pymtp_cell_bytes(llama_context * ctx);

// What else than the text they depend on.
struct pymtp_cell_kind {
    ggml_type type_k;
    ggml_type type_v;
    bool      flash_attn;
};

pymtp_cell_kind pymtp_get_cell_kind(llama_context * ctx);

// How many of the model's tensors each kind of buffer has, such as "120 CPU, 80 CPU_REPACK".
std::string pymtp_weight_buffers(llama_context * ctx);

// Whether the first n tokens of a sequence are in the first n cells.
bool pymtp_has_cells_in_order(llama_context * ctx, llama_seq_id seq, int32_t n);

// K and V of n tokens from the first on, each a stride after the one before. They are loaded to the cells of these numbers of a
// sequence that is empty, and stays so until pymtp_load_state.
bool pymtp_save_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n,       uint8_t * data, size_t stride);
bool pymtp_load_cells(llama_context * ctx, llama_seq_id seq, llama_pos first, int32_t n, const uint8_t * data, size_t stride);

// What the recurrent layers go on from after the n_tokens that a sequence holds: states that are n_replay tokens behind, and
// what these tokens bring. n_replay of a sequence, the most that can be loaded, and the bytes; 0 without such layers.
int32_t pymtp_n_to_replay(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens);
int32_t pymtp_most_to_replay(llama_context * ctx);
size_t  pymtp_state_bytes(llama_context * ctx, int32_t n_replay);
bool    pymtp_save_state(llama_context * ctx, llama_seq_id seq, llama_pos n_tokens, uint8_t * data);

// A sequence that is empty holds the tokens, whose K and V were put into its first n cells. Then, where it returns false and
// where it throws, it may have to be emptied. It cannot be rewound.
bool pymtp_load_state(
        llama_context * ctx, llama_seq_id seq, const llama_token * tokens, int32_t n, int32_t n_replay, const uint8_t * data);

// ── sampling in the graph ──

// The token that follows from n logits of a row: those of the tokens ids, in no order, or of the vocabulary where ids is
// null.
typedef llama_token (*pymtp_sample_callback)(
        void * user_data, int32_t row, const float * logits, const llama_token * ids, int32_t n);

struct pymtp_graph_sample {
    pymtp_sample_kind kind = PYMTP_SAMPLE_NONE;

    int32_t n_candidates = 0;
    bool    probs        = false; // of argmax: pymtp_get_sampled has probabilities, not logits

    // called on threads of the host: it must not throw. One thread calls it for each n_together rows, in order, that lie side
    // by side: of a chain, whose rows are counted anew in each step, for a row a sequence.
    pymtp_sample_callback callback   = nullptr;
    void *                user_data  = nullptr;
    int32_t               n_together = 1;
};

// While a kind is set, the graphs of ctx end with a token sampled from each row of logits. The logits are not copied out:
// llama_get_logits has none. What no callback needs to see stays on the device that has the logits.
void pymtp_set_sample(llama_context * ctx, const pymtp_graph_sample & sample);

// What the last batch sampled by argmax: a token for each of the n rows, and its logit or probability, which is no finite
// number where a logit is NaN or the highest is infinite. Waits for the batch. Throws when it sampled otherwise, or not n.
void pymtp_get_sampled(llama_context * ctx, llama_token * tokens, float * values, int32_t n);

// ── the draft vocabulary ──

constexpr int32_t PYMTP_ROW_STEP = 64; // in the layouts that backends have for weights, rows come in groups of up to 32

// The matrix that drafts are made with: of the head's own, or the model's output layer.
const ggml_tensor * pymtp_draft_output(const llama_model & model);

// Room in a draft context for copies of n_main + n_annex rows of that matrix, multiples of PYMTP_ROW_STEP.
void pymtp_make_draft_rows(llama_context * ctx, int32_t n_main, int32_t n_annex);

// tokens: of all rows, in their order. data: the rows as the file has them; with only_annex those of the annex, the others
// stay as they were.
void pymtp_set_draft_rows(llama_context * ctx, const llama_token * tokens, bool only_annex, const void * data);

// While set, drafts are made over these rows alone: logits, candidates and what is sampled are of their tokens.
void pymtp_use_draft_rows(llama_context * ctx, bool value);

// ── what it takes ──

// Bytes that a context has copied from the devices to the host, by what they hold.
struct pymtp_output_bytes {
    int64_t logits     = 0;
    int64_t embeddings = 0;
    int64_t hidden     = 0; // hidden states for a head
    int64_t samples    = 0; // what callbacks sampled from, wherever it was, and what was sampled without them
    int64_t buffer     = 0; // not a sum: the size of the buffer that they are copied to
};

pymtp_output_bytes pymtp_get_output_bytes(llama_context * ctx);

using pymtp_bytes = std::map<ggml_backend_buffer_type_t, size_t>;

// In use, or planned where the model was loaded without memory.
struct pymtp_memory_parts {
    pymtp_bytes weights;
    pymtp_bytes kv;
    pymtp_bytes states;    // recurrent ones, and the inputs of the last tokens
    pymtp_bytes kept_rows; // the hidden states kept for the head
    pymtp_bytes draft_rows;
    pymtp_bytes compute;   // of all slots
};

pymtp_memory_parts pymtp_get_memory(llama_context * ctx);

// The compute buffer that a slot would have for batches of n tokens of each of n_seqs sequences, over full caches.
pymtp_bytes pymtp_planned_compute(llama_context * ctx, int32_t n_seqs, int32_t n);
