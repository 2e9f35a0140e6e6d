// The C API that Python calls. A "pair" is a target context and a draft context of one model that are driven together:
// the target verifies drafts, and the draft context runs the multi-token-prediction (MTP) head, which makes them. No
// function throws an exception; after a failed call, pymtp_last_error() returns the reason. Functions for tests and
// comparisons are in compare/pymtp_compare.h.
//
// Row i of the head combines token i with the target's hidden state of token i-1 (zeros for i = 0), has position i,
// and predicts token i+1. In a chain of draft steps, every step after the first uses the head's own hidden state
// instead of the target's.
#pragma once

#include "llama.h"

#ifdef _WIN32
#    define PYMTP_API __declspec(dllexport)
#else
#    define PYMTP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum pymtp_tap {
    PYMTP_TAP_POST_NORM = 0,
    PYMTP_TAP_PRE_NORM  = 1,
};

enum pymtp_status {
    PYMTP_OK        =  0,
    PYMTP_FULL      =  1, // the tokens do not fit in the context; nothing was changed
    PYMTP_CANCELLED =  2, // the call was cancelled and its sequences were cleared; all other sequences are unchanged
    // the grammar allows no token at a position; the sequence keeps the tokens before the position
    PYMTP_DEAD_END  =  3,
    PYMTP_RUNNING   =  4, // the projector is still encoding the image
    PYMTP_INVALID   = -1, // an argument is invalid; nothing was changed
    PYMTP_FAILED    = -2, // llama.cpp failed and the call's sequences were cleared; all other sequences are unchanged
    // this call or an earlier one left the pair in an undefined state, so it refuses all further calls
    PYMTP_BROKEN    = -3,
};

// Returns the message of the last error in this thread, with the errors that llama.cpp logged, if any. Never returns
// NULL.
PYMTP_API const char * pymtp_last_error(void);

// Sets a callback for log lines whose level is at least `level`. The callback runs on whichever thread llama.cpp logs
// from. callback: NULL turns logging off
typedef void (*pymtp_log_callback)(int level, const char * text);
PYMTP_API void pymtp_set_log(pymtp_log_callback callback, int level);

// Sets a callback that runs about 20 times a second during a native call, on the calling thread. Returning true
// cancels the call.
typedef bool (*pymtp_poll_callback)(void);
PYMTP_API void pymtp_set_poll(pymtp_poll_callback callback);

// Return properties of this build of the native module.
PYMTP_API const char * pymtp_build_llama_commit(void);
PYMTP_API const char * pymtp_build_patches(void); // names of the patches to llama.cpp, separated by ";"
PYMTP_API const char * pymtp_build_compiler(void);
PYMTP_API const char * pymtp_build_type(void);
PYMTP_API const char * pymtp_build_cuda_architectures(void);

// Properties of a model, read from the metadata of its GGUF file before llama.cpp builds a model from it.
struct pymtp_file_info {
    char    architecture[64];
    int32_t n_layer;          // number of blocks of the trunk
    int32_t n_layer_mtp;      // number of blocks of the head; 0 if the head's tensors are missing
    char    head_absent[256]; // if the keys announce a head whose tensors are missing: the reason; otherwise ""
    int32_t tap;              // an enum pymtp_tap, or -1 if the file does not say which
    int32_t n_embd;
    int32_t n_ctx_train;
    char    weight_type[32]; // the type that most bytes of the tensors have, such as "q4_K"
};

// Checks a model's metadata and fills in `info`. Returns PYMTP_INVALID for a file that llama.cpp must not load.
// path: the model's file.
// head: the head's file, if the head is in a separate file; otherwise NULL
PYMTP_API int pymtp_inspect(const char * path, const char * head, struct pymtp_file_info * info);

// One file of a model, and the size of the file's header, which holds the keys and the names, types and shapes of the
// tensors.
struct pymtp_file_part {
    char    path[4096];
    int64_t header_bytes;
};

// Lists the files of a model: writes at most n_max entries to `parts`, and returns the number of all files, or -1 on
// failure.
PYMTP_API int32_t pymtp_file_parts(const char * path, struct pymtp_file_part * parts, int32_t n_max);

// A loaded model. Pairs that were made from a model keep its weights alive: the weights are freed with the model or
// with its last pair, whichever is freed last. Any order is allowed, because Python's garbage collector guarantees
// none.
struct pymtp_model;

// Options for loading a model, with llama.cpp's names and meanings.
struct pymtp_model_options {
    int32_t n_gpu_layers; // number of layers on the GPU; -1: all
    bool    mtp;          // whether to load the head's tensors as well
    const char * head;    // the head's file, if the head is in a separate file; otherwise NULL
    bool    vocab_only;   // whether to load only metadata and vocabulary, but no tensors
    bool    use_mmap;
    bool    use_mlock;
    enum llama_split_mode split_mode;
    int32_t main_gpu; // the GPU to use with LLAMA_SPLIT_MODE_NONE: an index among the GPUs
    int32_t n_tensor_split;
    const float * tensor_split; // the share of each GPU; n_tensor_split entries, at most llama_max_devices()
    int32_t n_overrides;
    const char * const * patterns; // regular expressions for tensor names; for each tensor the first match decides
    const char * const * buffers;  // for each pattern, the name of the buffer type that matching tensors get
    // number of patterns, at the end of the list, that place the experts of the first layers
    int32_t n_moe_overrides;
    int32_t n_lora;
    const char * const * lora; // paths of the LoRA adapters' files; lora_scales: the scale of each adapter
    const float        * lora_scales;
};

// Checks options for loading a model. Returns PYMTP_INVALID if a pattern is not a regular expression, a buffer type is
// unknown, or a GPU does not exist.
PYMTP_API int pymtp_check_model_options(const struct pymtp_model_options * options);

// Checks whether a model can be loaded with the LoRA adapters of the options, without reading the model's weights.
PYMTP_API int pymtp_check_adapters(const char * path, const struct pymtp_model_options * options);

// Loads a model. Returns NULL on failure.
PYMTP_API struct pymtp_model * pymtp_model_load(const char * path, const struct pymtp_model_options * options);
PYMTP_API void pymtp_model_free(struct pymtp_model * model);
PYMTP_API struct llama_model * pymtp_model_get(const struct pymtp_model * model);

// A norm layer of the head: the name of its tensor, and the mean of the tensor's weights.
struct pymtp_head_norm {
    char   name[64];
    double mean;
};

// Lists the norm layers of a loaded head: writes at most n_max entries to `norms`. Returns the number of entries
// written, 0 if the model has no head, or -1 on failure.
PYMTP_API int32_t pymtp_head_norms(const struct pymtp_model * model, struct pymtp_head_norm * norms, int32_t n_max);

// pymtp_tokenize tokenizes like llama_tokenize, and parses special tokens in the text. pymtp_token_piece returns a
// token's text like llama_token_to_piece; control tokens have none, except the markers of thinking and tool calls. Both
// functions return INT32_MIN on failure.
PYMTP_API int32_t pymtp_tokenize(
        const struct pymtp_model * model, const char * text, int32_t length, llama_token * tokens, int32_t n_max,
        bool add_special);
PYMTP_API int32_t pymtp_token_piece(const struct pymtp_model * model, llama_token token, char * piece, int32_t n_max);

struct pymtp_pair;

// The way in which the hidden states of a prompt get to the head.
enum pymtp_prefill_mode {
    PYMTP_PREFILL_FUSED       = 0, // the hidden states stay on the device: the target's graph fills the head's cache
    // the host copies the hidden states, and the head's whole block processes them, as in llama.cpp
    PYMTP_PREFILL_HOST_COPY   = 1,
    // like HOST_COPY, but every token is an output with embeddings, as in the first implementations of MTP
    PYMTP_PREFILL_ALL_OUTPUTS = 2,
};

// The place where tokens are sampled.
enum pymtp_sample_on {
    PYMTP_SAMPLE_ON_AUTO   = 0, // like DEVICE if the logits are on a CUDA or Vulkan device, otherwise like HOST
    PYMTP_SAMPLE_ON_HOST   = 1, // the host samples from rows of logits
    // The graph takes the most likely token, or picks the candidates for top_k, and the host samples from these. Whole
    // rows of logits are copied to the host when candidates do not suffice: without top_k, with a top_k above 128, and
    // for bias, penalties, a grammar and logprobs.
    PYMTP_SAMPLE_ON_DEVICE = 2,
};

struct pymtp_pair_options {
    int32_t n_draft;   // largest number of drafts of the head per sequence; 0: the pair has no draft context
    int32_t n_text;    // largest number of drafts per sequence that come from elsewhere, such as from the text
    int32_t n_seq_max; // number of sequences, each with n_ctx / n_seq_max tokens
    int32_t n_outputs; // largest number of rows of logits in a batch of a prefill that returns all logits
    enum pymtp_tap          tap;
    enum pymtp_prefill_mode prefill;
    enum pymtp_sample_on    sample_on;
    // size of the draft vocabulary (draft_vocab.h), used with PREFILL_FUSED; 0: drafts use all tokens
    int32_t n_draft_vocab;
    bool    adaptive_draft_vocab; // whether drafts use the whole vocabulary while that gives more tokens/s
    bool    embeddings;           // whether to keep the embeddings of prompts, which makes every token an output
    bool    trace;                // whether to record the nodes that graphs compute, see pymtp_pair_trace
    // whether to compute even small graphs with all threads, although other programs may be using the cores
    bool    all_threads;
};

// Parses a grammar in GBNF, whose start rule is "root", for a model's vocabulary. If the grammar is refused, returns
// NULL, and pymtp_last_error() returns the reason.
struct pymtp_grammar;
PYMTP_API struct pymtp_grammar * pymtp_grammar_init(const struct pymtp_model * model, const char * text);
PYMTP_API void pymtp_grammar_free(struct pymtp_grammar * grammar);

struct pymtp_logit_bias {
    llama_token token;
    float       bias;
};

// The samplers that a request can put in another order.
enum pymtp_sampler_kind {
    PYMTP_SAMPLER_PENALTIES   = 0,
    PYMTP_SAMPLER_DRY         = 1,
    PYMTP_SAMPLER_TOP_N_SIGMA = 2,
    PYMTP_SAMPLER_TOP_K       = 3,
    PYMTP_SAMPLER_TYPICAL_P   = 4,
    PYMTP_SAMPLER_TOP_P       = 5,
    PYMTP_SAMPLER_MIN_P       = 6,
    PYMTP_SAMPLER_XTC         = 7,
    PYMTP_SAMPLER_TEMPERATURE = 8,
};

// The strings at which DRY ends repetitions, as tokens of a model's vocabulary. pymtp_dry_breakers_init returns NULL on
// failure. The samplers that use the tokens keep them.
struct pymtp_dry_breakers;
PYMTP_API struct pymtp_dry_breakers * pymtp_dry_breakers_init(
        const struct pymtp_model * model, const char * const * strings, int32_t n);
PYMTP_API void pymtp_dry_breakers_free(struct pymtp_dry_breakers * breakers);

// Changes a row of n_vocab logits, from which the token after the n tokens of `prefix` is sampled. Returns false if no
// token must be sampled from the row: then the sequence fails with PYMTP_DEAD_END. Threads of ggml may call it, and it
// must not throw.
typedef bool (*pymtp_logits_processor)(
        void * data, float * logits, int32_t n_vocab, const llama_token * prefix, int32_t n);

// Sampling parameters. They are applied in llama.cpp's default order, unless `samplers` names another. The native
// functions check only counts and token ids; the caller must check the ranges of the other parameters.
struct pymtp_sampling {
    // 0: greedy sampling, which ignores top_k, top_p and min_p; the samplers after n_logprobs come before it
    double   temperature;
    int32_t  top_k;       // 0: off
    double   top_p;
    double   min_p;
    uint64_t seed;
    int32_t  penalty_last_n;    // number of previous tokens that penalties apply to; -1: all
    float    repeat_penalty;    // 1: off
    float    frequency_penalty; // 0: off
    float    presence_penalty;  // 0: off
    int32_t  n_bias;
    const struct pymtp_logit_bias * bias;
    const struct pymtp_grammar * grammar; // NULL: no constraint
    // number of tokens at the end of the prompt that already belong to the grammar's text
    int32_t  n_grammar_prefix;
    int32_t  n_logprobs;                  // number of top tokens to report for each sampled token; -1: no report
    // the samplers to apply, each an enum pymtp_sampler_kind, in their order; NULL: all, in llama.cpp's default order
    const int32_t * samplers;
    int32_t  n_samplers;
    double   dry_multiplier;     // 0: off
    double   dry_base;           // below 1: off
    int32_t  dry_allowed_length; // number of tokens that may repeat without a penalty
    int32_t  dry_penalty_last_n; // number of previous tokens that DRY looks at; -1: all
    const struct pymtp_dry_breakers * dry_breakers; // NULL: none
    double   top_n_sigma;        // 0: off
    double   typical_p;          // 0 and 1: off
    double   xtc_probability;    // 0: off
    double   xtc_threshold;      // above 0.5: off
    double   dynatemp_range;     // 0: off
    double   dynatemp_exponent;
    // applies to the target's logits before everything else; drafts are sampled without it. NULL: none
    pymtp_logits_processor processor;
    void *   processor_data; // valid until the sequence gets other sampling parameters, or the pair is freed
};

// A log-probability from the softmax over the whole vocabulary at temperature 1, before bias, penalties, grammar and
// filters.
struct pymtp_logprob {
    llama_token token;
    double      logprob;
};

// Statistics of all calls since the pair was made. Seconds are wall time; a phase ends when its results are on the
// host.
struct pymtp_counters {
    double  prefill_seconds;
    // time in which the head processed rows of prompts, except in the fused mode, where the target's graph does it
    double  head_sync_seconds;
    // time of drafting, with the time in which the head processed tokens that it lagged behind
    double  draft_seconds;
    double  verify_seconds;
    double  rewind_seconds;
    double  sample_seconds; // time of sampling, which draft_seconds and verify_seconds include
    int64_t target_decodes;
    int64_t draft_decodes;
    int64_t graphs_reused; // number of ubatches that reused the graph of an earlier one
    // hidden_bytes, logits_bytes, embeddings_bytes: bytes of hidden states, logits and embeddings copied from devices
    // to the host
    int64_t hidden_bytes;
    int64_t logits_bytes;
    int64_t embeddings_bytes;
    // bytes of the logits that the host sampled from within graphs, and of the tokens that graphs sampled themselves
    int64_t draw_bytes;
    int64_t output_buffer_bytes; // not a sum: size of the host buffer that logits and embeddings are copied to
    int64_t sequence_bytes;      // bytes copied from one sequence to another
    int64_t saved_bytes;         // bytes copied from sequences to host memory
    int64_t loaded_bytes;        // bytes copied from host memory to sequences
};

// Memory of a pair on one device, in bytes. The last four fields belong to the head.
struct pymtp_memory {
    char    device[64];
    bool    host;
    int64_t weights;
    int64_t kv;      // K and V of the trunk
    int64_t states;  // recurrent states, and the inputs of the last tokens
    int64_t compute; // compute buffers of the target's graphs
    int64_t head_kv;
    int64_t head_compute; // compute buffers of the draft context's graphs
    int64_t kept_rows;    // pending hidden states for the head
    int64_t draft_vocab;  // the reduced output layer
};

// Makes a pair. Returns NULL on failure. Ignores these fields of params and sets them itself: the context types,
// n_seq_max, n_rs_seq, the numbers of outputs, and the callbacks.
PYMTP_API struct pymtp_pair * pymtp_pair_init(
        const struct pymtp_model * model, struct llama_context_params params,
        const struct pymtp_pair_options * options);
PYMTP_API void pymtp_pair_free(struct pymtp_pair * pair);

// Makes an image known to a pair. In sequences, the image is a run of nx*ny tokens `token`, which is negative: nx
// columns and ny rows. Must be called before tokens of the image are processed or loaded. Calls with the same
// arguments may be repeated. Returns PYMTP_INVALID for a grid other than before, and for a model without M-RoPE.
PYMTP_API int pymtp_pair_add_image(struct pymtp_pair * pair, llama_token token, int32_t nx, int32_t ny);

// The rows of an image, which a projector has made: n rows of floats, one for each of its nx*ny tokens.
struct pymtp_image_rows {
    llama_token   token;
    const float * rows;
    int32_t       n;
};

// Appends tokens to one or more sequences: the target and the head process them in batches of n_batch.
// seqs: the sequences, in rising order.
// tokens: the tokens of all sequences, concatenated in that order; lengths[k]: number of tokens of seqs[k].
// images: the images whose tokens are among these, each with all its rows; n_images: their number.
// all: whether to return the logits of every token instead of only those of each sequence's last token.
// logits: receives rows of n_vocab floats, which are valid until the next prefill
PYMTP_API int pymtp_pair_prefill(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
        const int32_t * lengths, const struct pymtp_image_rows * images, int32_t n_images, bool all,
        const float ** logits);

// Returns the embeddings of the last prefill, n_embd floats for each token, if the pair was made with
// options.embeddings.
PYMTP_API const float * pymtp_pair_embeddings(const struct pymtp_pair * pair);

// Processes 1 to 1+max(n_draft, n_text) tokens of a sequence with the target, without sampling.
// logits: receives n rows of n_vocab floats, which are valid until the next call
PYMTP_API int pymtp_pair_verify(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits);

// Sets how the tokens of a sequence are sampled from now on. Must be called before first_token, draft_tokens and
// verify_tokens. Biases and grammar are copied. The grammar's text starts with the first sampled token, or with the
// prompt's last n_grammar_prefix tokens.
PYMTP_API int pymtp_pair_set_sampling(struct pymtp_pair * pair, int32_t seq, const struct pymtp_sampling * sampling);

// Samples the first token after a prompt, from the logits of the last prefill.
PYMTP_API int pymtp_pair_first_token(struct pymtp_pair * pair, int32_t seq, llama_token * token);

// The result for one sequence of a call that processes several sequences.
struct pymtp_outcome {
    int32_t n; // number of drafts made, or of tokens sampled

    // PYMTP_OK; PYMTP_DEAD_END if the grammar allows no token at `position`; or PYMTP_FAILED if a logit at `position`
    // is not a number, in which case the sequence was cleared
    int32_t status;
    int32_t position;
};

// Returns the outcome's status, and stores its error message for pymtp_last_error().
PYMTP_API int pymtp_outcome_error(const struct pymtp_outcome * outcome);

// Makes n drafts for each sequence. Adjacent sequences share a decode.
// seqs: the sequences, in rising order.
// tokens: for each sequence, the token that follows the last token that it holds. The first draft step starts from this
// token, and each further step from the draft of the step before.
// drafts, confidences: receive n entries for each sequence. A confidence is the head's probability of the draft: among
// the most likely candidates or, if the graph took the most likely token, among all tokens.
// outcomes: receives for each sequence the number of usable drafts, which is less than n if a step had logits that are
// not finite. That is not a failure, because the target decides on the text, not the head.
PYMTP_API int pymtp_pair_draft_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
        llama_token * drafts, float * confidences, struct pymtp_outcome * outcomes);

// Verifies drafts: processes tokens of each sequence like pymtp_pair_verify, and samples the token after each row,
// until a sample differs from the token in the next row. Adjacent sequences share a decode. In a shared decode all
// sequences have the same number of rows, so each must have room for as many tokens as the longest. Rows that only pad
// a sequence are not sampled from, and are rewound.
// seqs: the sequences, in rising order.
// tokens: the tokens of all sequences, concatenated; lengths[k]: number of tokens of seqs[k].
// sampled: has lengths[k] entries for each sequence, concatenated; the first outcomes[k].n of them receive the samples.
// outcomes: receives for each sequence the number of samples, which is at least 1 unless the status is an error
PYMTP_API int pymtp_pair_verify_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
        const int32_t * lengths, llama_token * sampled, struct pymtp_outcome * outcomes);

// Returns the number of entries in `logprobs`. For each token that the last first_token or verify_tokens sampled for
// the sequence, they hold the log-probability of the token itself, then those of the top tokens. There are none unless
// the sampling parameters ask for log-probabilities. The entries are valid until the next sampling for the sequence.
PYMTP_API int32_t pymtp_pair_logprobs(struct pymtp_pair * pair, int32_t seq,
        const struct pymtp_logprob ** logprobs);

// Samples one token without a pair. Returns LLAMA_TOKEN_NULL when a logit is not a number, the grammar allows no token,
// or an argument is invalid.
// logits: n_vocab floats.
// position: the position to sample for, which the random numbers depend on.
// prefix: the n tokens before the sample; the text of a grammar starts with the first of them.
// confidence: receives the token's share of the candidates' probability
PYMTP_API llama_token pymtp_sample(
        const struct pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence);

// Returns the number of different tokens that drafts are currently chosen from.
PYMTP_API int32_t pymtp_pair_draft_vocab_size(struct pymtp_pair * pair);
// Returns whether the token was among those that the last drafts were chosen from.
PYMTP_API bool pymtp_pair_in_draft_vocab(struct pymtp_pair * pair, llama_token token);
// Resets the share of sampled tokens that were outside the draft vocabulary: it says nothing about the next text.
PYMTP_API void pymtp_pair_reset_draft_vocab(struct pymtp_pair * pair);

// Removes all but the first n_keep tokens of a sequence. Only the drafts of the last verification can be removed, and
// only before the next draft: the recurrent layers keep no older state than the one before these drafts.
PYMTP_API int  pymtp_pair_rewind(struct pymtp_pair * pair, int32_t seq, int32_t n_keep);
// Copies the sequence `from` to the empty sequence `to`, which then continues exactly like `from`; first_token works,
// too, if `from` could use it. `to` keeps its own sampling parameters. The drafts of `from` are discarded, and `to`
// cannot be rewound. When the call fails or is cancelled, `to` is empty and `from` is unchanged.
PYMTP_API int  pymtp_pair_copy(struct pymtp_pair * pair, int32_t from, int32_t to);
// Moves the sequence `from` to the empty sequence `to`: copies it like pymtp_pair_copy, moves its sampling parameters
// as well, and clears `from`.
PYMTP_API int  pymtp_pair_move(struct pymtp_pair * pair, int32_t from, int32_t to);
PYMTP_API int  pymtp_pair_clear(struct pymtp_pair * pair, int32_t seq);

// The functions from here to pymtp_pair_load_state save and load sequences.
// K and V of one token take pymtp_pair_cell_bytes adjacent bytes: layer by layer of the target, then of the head, K
// before V. The bytes of several tokens are concatenated, so saved data can be cut between any two tokens.
// Saving first discards drafts and lets the head process the tokens that it lags behind; afterwards nothing can be
// rewound. If this preparation fails, the sequence is cleared; if only the copying fails, the sequence is unchanged.
PYMTP_API int64_t pymtp_pair_cell_bytes(struct pymtp_pair * pair); // -1 on failure

// Returns the largest number of bytes that pymtp_pair_save_state can need, including logits; -1 on failure.
PYMTP_API int64_t pymtp_pair_state_bytes(struct pymtp_pair * pair);

// The properties that the bytes of saved K and V depend on, beside the tokens, the model and the tap.
struct pymtp_cell_format {
    char    type_k[16];
    char    type_v[16];
    bool    flash_attn;
    bool    head; // whether K and V of the head are included
    int32_t n_ubatch;
    enum pymtp_prefill_mode prefill;
    // number of tensors in each kind of buffer, because the kind of buffer decides which kernels compute K and V
    char    weights[128];
};
PYMTP_API int pymtp_pair_cell_format(struct pymtp_pair * pair, struct pymtp_cell_format * format);

PYMTP_API int pymtp_pair_save_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data);

// These functions stage K and V in a sequence: they write the cells of tokens that the sequence does not hold yet, so
// that pymtp_pair_load_state can add the tokens. The sequence must be empty, and counts as empty afterwards. Tokens are
// staged from the first on, without gaps. Staged data are lost when the sequence gets tokens or is cleared.
// load_cells stages data from host memory, and copy_cells stages cells of another sequence. retain_cells clears the
// sequence, but leaves the cells of its first n tokens staged.
PYMTP_API int pymtp_pair_load_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n,
        const uint8_t * data);
PYMTP_API int pymtp_pair_copy_cells(struct pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n);
PYMTP_API int pymtp_pair_retain_cells(struct pymtp_pair * pair, int32_t seq, int32_t n);

// Saves the state of a sequence, which is everything beside K and V that it needs in order to continue.
// logits: whether to include the logits of the last token, if first_token could use them.
// data: receives the state, but only if `size` is large enough.
// needed: receives the size of the state in bytes
PYMTP_API int pymtp_pair_save_state(
        struct pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size, size_t * needed);

// Checks whether a saved state can be loaded with these tokens. If not, returns PYMTP_INVALID, and pymtp_last_error()
// returns the reason. logits: receives whether the state includes the logits of the last token
PYMTP_API int pymtp_pair_check_state(
        struct pymtp_pair * pair, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size,
        bool * logits);

// Adds the tokens to an empty sequence in which their K and V are staged, and loads the saved state. The sequence then
// continues exactly like the saved one, but cannot be rewound. When the call fails or is cancelled, the sequence is
// empty.
PYMTP_API int pymtp_pair_load_state(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data,
        size_t size);

// Returns the number of tokens that the target holds in a sequence, or -1 if there is no such sequence.
PYMTP_API int32_t pymtp_pair_n_past(struct pymtp_pair * pair, int32_t seq);
// Returns the tokens that the target holds in a sequence, pymtp_pair_n_past of them; NULL if there is no such sequence.
PYMTP_API const llama_token * pymtp_pair_tokens(struct pymtp_pair * pair, int32_t seq);
// Returns the number of rows in the head's cache of a sequence, not counting drafts: fewer than pymtp_pair_n_past while
// the head lags behind; -1 if there is no such sequence.
PYMTP_API int32_t pymtp_pair_n_head(struct pymtp_pair * pair, int32_t seq);
PYMTP_API int32_t pymtp_pair_n_ctx (struct pymtp_pair * pair); // tokens that fit in each sequence

// While `cancelled` is true, the pair's current call and all later calls return PYMTP_CANCELLED. May be called from any
// thread.
PYMTP_API void pymtp_pair_cancel(struct pymtp_pair * pair, bool cancelled);
PYMTP_API void pymtp_pair_counters(struct pymtp_pair * pair, struct pymtp_counters * counters);

// Reports the memory that a pair uses on each device: writes at most n_max entries to `memory`, and returns the number
// of entries written, or -1 on failure. Graphs of rounds are included only after they have run.
PYMTP_API int32_t pymtp_pair_memory(struct pymtp_pair * pair, struct pymtp_memory * memory, int32_t n_max);

// Returns the bytes of host memory that making a pair certainly writes to: K, V, recurrent states, and llama.cpp's data
// about cells; -1 on failure. Callers compare it with the machine's memory, because the operating system may allocate
// more memory than there is, and kill the process that writes to it.
PYMTP_API int64_t pymtp_min_host_memory(
    const struct pymtp_model * model, struct llama_context_params params, const struct pymtp_pair_options * options);

// Computes how much memory a model and a pair would use on each device after rounds of every depth have run. Allocates
// nothing, reads no weights, and ignores adapters. Writes at most n_max entries to `memory`, and returns the number of
// entries written, or -1 on failure.
PYMTP_API int32_t pymtp_plan_memory(
        const char * path, const struct pymtp_model_options * model_options, struct llama_context_params params,
        const struct pymtp_pair_options * options, struct pymtp_memory * memory, int32_t n_max);

#ifdef __cplusplus
}
#endif
