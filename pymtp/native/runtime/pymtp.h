// The C API that Python calls. A pair is a target and a draft context of one model, driven together: the target
// verifies, and the draft context runs the multi-token-prediction (MTP) head. No function throws; after a failed call,
// pymtp_last_error() returns the reason. Functions for tests and comparisons are in compare/pymtp_compare.h.
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
    PYMTP_FULL      =  1, // the tokens do not fit in n_ctx; nothing was changed
    PYMTP_CANCELLED =  2, // the call's sequences were cleared; all others are unchanged
    PYMTP_DEAD_END  =  3, // the grammar allows no token; the sequence holds the tokens before that position
    PYMTP_INVALID   = -1, // an argument is invalid; nothing was changed
    PYMTP_FAILED    = -2, // llama.cpp failed; the call's sequences were cleared; all others are unchanged
    PYMTP_BROKEN    = -3, // an earlier or this call left the pair in an undefined state: it refuses all calls now
};

// Returns this thread's last error, including llama.cpp's own message if it had one; never NULL.
PYMTP_API const char * pymtp_last_error(void);

// Sets a callback for log lines at or above the level. It runs on any thread that llama.cpp logs from. NULL: no
// logging.
typedef void (*pymtp_log_callback)(int level, const char * text);
PYMTP_API void pymtp_set_log(pymtp_log_callback callback, int level);

// Sets a callback that runs about 20 times a second during a native call, on the calling thread. Returning true
// cancels the call.
typedef bool (*pymtp_poll_callback)(void);
PYMTP_API void pymtp_set_poll(pymtp_poll_callback callback);

// Return properties of this build.
PYMTP_API const char * pymtp_build_llama_commit(void);
PYMTP_API const char * pymtp_build_patches(void); // names, separated by ";"
PYMTP_API const char * pymtp_build_compiler(void);
PYMTP_API const char * pymtp_build_type(void);
PYMTP_API const char * pymtp_build_cuda_architectures(void);

// The metadata of a GGUF file, read before llama.cpp builds a model from it.
struct pymtp_file_info {
    char    architecture[64];
    int32_t n_layer;          // blocks of the trunk
    int32_t n_layer_mtp;      // blocks of the head, if its tensors are in the file
    char    head_absent[256]; // why an announced head is missing; "" when it is there, or none is announced
    int32_t tap;              // enum pymtp_tap; -1 when the file does not say
    int32_t n_embd;
    int32_t n_ctx_train;
    char    weight_type[32]; // the type of most bytes of the file's tensors
};

// Inspects a model. head: the file of a head in a file of its own, or NULL.
PYMTP_API int pymtp_inspect(const char * path, const char * head, struct pymtp_file_info * info);

// One file of a model, and the bytes of its header: keys, and the names, types and shapes of its tensors.
struct pymtp_file_part {
    char    path[4096];
    int64_t header_bytes;
};

// Lists the files of a model, at most n_max of them. Returns their number, -1 on failure.
PYMTP_API int32_t pymtp_file_parts(const char * path, struct pymtp_file_part * parts, int32_t n_max);

// A reference to a loaded model. The weights are freed with the last reference, counting the pairs made from it, in
// any order: Python's garbage collector gives no order.
struct pymtp_model;

// Options for loading a model, with llama.cpp's names and meanings.
struct pymtp_model_options {
    int32_t n_gpu_layers; // -1 for all
    bool    mtp;          // load the head's tensors too
    const char * head;    // the head's file, if it is not part of the model's; else NULL
    bool    vocab_only;   // load metadata and vocabulary, but no tensors
    bool    use_mmap;
    bool    use_mlock;
    enum llama_split_mode split_mode;
    int32_t main_gpu; // the GPU to use with LLAMA_SPLIT_MODE_NONE, counting only GPUs
    int32_t n_tensor_split;
    const float * tensor_split; // share of each GPU, at most llama_max_devices() of them
    int32_t n_overrides;
    const char * const * patterns; // regular expressions for tensor names: the first match decides
    const char * const * buffers;  // the buffer type for each pattern, by name
    int32_t n_moe_overrides;       // how many patterns, the last ones, are for the experts of the first layers
    int32_t n_lora;
    const char * const * lora; // files of LoRA adapters, with their scales
    const float        * lora_scales;
};

// Checks the options. Returns PYMTP_INVALID for a pattern that is not a regular expression, an unknown buffer type, or
// a missing GPU.
PYMTP_API int pymtp_check_model_options(const struct pymtp_model_options * options);

// Checks whether a model can be loaded with the adapters, without reading its weights.
PYMTP_API int pymtp_check_adapters(const char * path, const struct pymtp_model_options * options);

// Loads a model. Returns NULL on failure.
PYMTP_API struct pymtp_model * pymtp_model_load(const char * path, const struct pymtp_model_options * options);
PYMTP_API void pymtp_model_free(struct pymtp_model * model);
PYMTP_API struct llama_model * pymtp_model_get(const struct pymtp_model * model);

// A norm of the head: the name of its tensor, and the mean of its weights.
struct pymtp_head_norm {
    char   name[64];
    double mean;
};

// Lists the norms of a loaded head, at most n_max of them. Returns their number, 0 without a head, -1 on failure.
PYMTP_API int32_t pymtp_head_norms(const struct pymtp_model * model, struct pymtp_head_norm * norms, int32_t n_max);

// Tokenize like llama_tokenize, with special tokens in the text parsed, and detokenize like llama_token_to_piece,
// without control tokens except the markers of thinking and tool calls. Return INT32_MIN on failure.
PYMTP_API int32_t pymtp_tokenize(
        const struct pymtp_model * model, const char * text, int32_t length, llama_token * tokens, int32_t n_max,
        bool add_special);
PYMTP_API int32_t pymtp_token_piece(const struct pymtp_model * model, llama_token token, char * piece, int32_t n_max);

struct pymtp_pair;

// The path of a prompt's hidden states to the head.
enum pymtp_prefill_mode {
    PYMTP_PREFILL_FUSED       = 0, // they stay on the device: the target's graph fills the head's cache
    PYMTP_PREFILL_HOST_COPY   = 1, // through the host and the head's whole block, as in llama.cpp
    PYMTP_PREFILL_ALL_OUTPUTS = 2, // every token is an output with embeddings, as in the first implementations
};

// The place where tokens are sampled.
enum pymtp_sample_on {
    PYMTP_SAMPLE_ON_AUTO   = 0, // DEVICE if the logits are on a CUDA or Vulkan device, otherwise HOST
    PYMTP_SAMPLE_ON_HOST   = 1, // the host samples from rows of logits
    // The graph takes the most likely token, or picks the candidates of top_k for the host to sample from. Whole rows
    // are copied to the host when candidates do not suffice: without top_k or with one above 128, and for bias,
    // penalties, a grammar and logprobs.
    PYMTP_SAMPLE_ON_DEVICE = 2,
};

struct pymtp_pair_options {
    int32_t n_draft;   // the most drafts in a round; 0: no draft context
    int32_t n_seq_max; // number of sequences, each with n_ctx / n_seq_max tokens
    int32_t n_outputs; // the most rows of logits in a batch, when all are asked for
    enum pymtp_tap          tap;
    enum pymtp_prefill_mode prefill;
    enum pymtp_sample_on    sample_on;
    int32_t n_draft_vocab;        // size of the draft vocabulary in the fused mode, see draft_vocab.h; 0: all tokens
    bool    adaptive_draft_vocab; // use the whole vocabulary while that gives more tokens/s
    bool    embeddings;           // keep the embeddings of prompts: every token becomes an output
    bool    trace;                // record the nodes that are computed
    bool    all_threads;          // compute even small graphs with all threads, whatever else runs
};

// Parses a grammar in GBNF (start rule "root") for a model's vocabulary. Returns NULL, with the error set, if it is
// refused.
struct pymtp_grammar;
PYMTP_API struct pymtp_grammar * pymtp_grammar_init(const struct pymtp_model * model, const char * text);
PYMTP_API void pymtp_grammar_free(struct pymtp_grammar * grammar);

struct pymtp_logit_bias {
    llama_token token;
    float       bias;
};

// Sampling parameters, applied in llama.cpp's default order. Counts and tokens are checked here; the caller checks
// other ranges.
struct pymtp_sampling {
    double   temperature; // 0: greedy; the filters below are then ignored
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
    int32_t  n_grammar_prefix;            // tokens at the end of the prompt that belong to the grammar's text
    int32_t  n_logprobs;                  // number of top tokens to report for each sampled token; -1: no report
};

// A log-probability from the softmax over the whole vocabulary at temperature 1, before bias, penalties, grammar and
// filters.
struct pymtp_logprob {
    llama_token token;
    double      logprob;
};

// Statistics since the pair was made. Seconds are wall time; a phase ends when its results are on the host.
struct pymtp_counters {
    double  prefill_seconds;
    double  head_sync_seconds; // prompt rows going through the head, when the target's graph does not do it
    double  draft_seconds;     // includes the tokens that the head had to catch up with
    double  verify_seconds;
    double  rewind_seconds;
    double  sample_seconds; // the part of draft and verify that samples tokens
    int64_t target_decodes;
    int64_t draft_decodes;
    int64_t graphs_reused; // ubatches that used the previous graph
    int64_t hidden_bytes;  // these are bytes copied from devices to the host
    int64_t logits_bytes;
    int64_t embeddings_bytes;
    int64_t draw_bytes;          // logits that the host sampled from, and tokens that graphs sampled by themselves
    int64_t output_buffer_bytes; // not a sum: the size of the host buffer that they are copied to
    int64_t sequence_bytes;      // copied from one sequence to another
    int64_t saved_bytes;         // copied from sequences to host memory
    int64_t loaded_bytes;        // copied from host memory to sequences
};

// Bytes on one device. The fields of the head come last.
struct pymtp_memory {
    char    device[64];
    bool    host;
    int64_t weights;
    int64_t kv;      // K and V of the trunk
    int64_t states;  // recurrent states, and the inputs of the last tokens
    int64_t compute; // the target's graphs
    int64_t head_kv;
    int64_t head_compute; // the draft context's graphs
    int64_t kept_rows;    // pending hidden states for the head
    int64_t draft_vocab;  // the reduced output layer
};

// Makes a pair. Overrides these fields of params: the context types, n_seq_max, n_rs_seq, the numbers of outputs, and
// the callbacks. Returns NULL on failure.
PYMTP_API struct pymtp_pair * pymtp_pair_init(
        const struct pymtp_model * model, struct llama_context_params params,
        const struct pymtp_pair_options * options);
PYMTP_API void pymtp_pair_free(struct pymtp_pair * pair);

// Processes tokens after those that the sequences hold, in batches of n_batch, with the target and the head. seqs must
// be in rising order; tokens are concatenated in the same order, lengths[k] for each sequence. logits: n_vocab floats
// for each sequence's last token or, with `all`, for every token; valid until the next prefill.
PYMTP_API int pymtp_pair_prefill(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
        const int32_t * lengths, bool all, const float ** logits);

// Returns the n_embd floats of every token of the last prefill, if the pair was made to keep them.
PYMTP_API const float * pymtp_pair_embeddings(const struct pymtp_pair * pair);

// Processes 1 to 1+n_draft tokens with the target. logits: n rows of n_vocab floats, valid until the next call.
PYMTP_API int pymtp_pair_verify(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits);

// Sets how the tokens of a sequence are sampled from now on. The next three functions require it. Biases and grammar
// are copied; the grammar's text starts with the first sampled token.
PYMTP_API int pymtp_pair_set_sampling(struct pymtp_pair * pair, int32_t seq, const struct pymtp_sampling * sampling);

// Samples the token after a prompt, from the logits of the last prefill.
PYMTP_API int pymtp_pair_first_token(struct pymtp_pair * pair, int32_t seq, llama_token * token);

// The result for one sequence of a call for several.
struct pymtp_outcome {
    int32_t n; // number of tokens

    // PYMTP_OK; PYMTP_DEAD_END when the grammar allows no token at `position`; PYMTP_FAILED when a logit there is not a
    // number: the sequence was cleared
    int32_t status;
    int32_t position;
};

// Returns the outcome's status, and stores its error message for pymtp_last_error().
PYMTP_API int pymtp_outcome_error(const struct pymtp_outcome * outcome);

// Runs n draft steps for each sequence, in rising order. The first step starts from the sequence's entry in tokens,
// which follows the last token that it holds; each further step starts from the token that the step before has
// sampled. drafts, confidences: n for each sequence. A confidence is the head's probability of the draft, among the
// most likely candidates or, if the graph took the most likely token, among all. Adjacent sequences share a decode. An
// outcome's n is the number of drafts before the first step whose logits are not finite. That is not a failure,
// because a head never decides on the text.
PYMTP_API int pymtp_pair_draft_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
        llama_token * drafts, float * confidences, struct pymtp_outcome * outcomes);

// Processes lengths[k] tokens of each sequence like pymtp_pair_verify, in rising order, and samples the token after
// each row, until a sample differs from the token in the next row. Of lengths[k] places in sampled, the outcome's n
// are used, at least 1. Tokens and places of the sequences are concatenated. Adjacent sequences share a decode with
// the same number of rows each, so each must have room for the longest. Padding rows are not sampled from, and are
// rewound.
PYMTP_API int pymtp_pair_verify_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
        const int32_t * lengths, llama_token * sampled, struct pymtp_outcome * outcomes);

// For each token that the last first_token or verify_tokens sampled for a sequence, if asked for: its own
// log-probability, then those of the top tokens. Returns the total number; valid until the next sample of the
// sequence.
PYMTP_API int32_t pymtp_pair_logprobs(const struct pymtp_pair * pair, int32_t seq,
        const struct pymtp_logprob ** logprobs);

// Samples one token on its own: for a position, from n_vocab logits and the n tokens before it. A grammar's text
// starts with the first of these. Returns LLAMA_TOKEN_NULL when a logit is not a number, the grammar allows no token,
// or an argument is wrong.
PYMTP_API llama_token pymtp_sample(
        const struct pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence);

// Returns the number of tokens that drafts are currently made over.
PYMTP_API int32_t pymtp_pair_draft_vocab_size(const struct pymtp_pair * pair);
// Tells whether the last drafts could have been this token.
PYMTP_API bool pymtp_pair_in_draft_vocab(const struct pymtp_pair * pair, llama_token token);
// Forgets how many sampled tokens were outside the draft vocabulary, because they say nothing about the text to come.
PYMTP_API void pymtp_pair_reset_draft_vocab(struct pymtp_pair * pair);

// Keeps the first n_keep tokens. Only the drafts of the last verification can be rewound, before the next draft,
// because the recurrent layers keep the state before them.
PYMTP_API int  pymtp_pair_rewind(struct pymtp_pair * pair, int32_t seq, int32_t n_keep);
// Copies a sequence to an empty one, which then continues exactly like the first, also with first_token after a
// prompt. The copy keeps its own sampling parameters. Drafts are discarded, and the copy cannot be rewound. When it
// fails or is cancelled, the copy is empty and the first sequence is unchanged.
PYMTP_API int  pymtp_pair_copy(struct pymtp_pair * pair, int32_t from, int32_t to);
// Does the same, moves the sampling parameters as well, and clears the first sequence.
PYMTP_API int  pymtp_pair_move(struct pymtp_pair * pair, int32_t from, int32_t to);
PYMTP_API int  pymtp_pair_clear(struct pymtp_pair * pair, int32_t seq);

// Saving and loading of sequences. A token's K and V are pymtp_pair_cell_bytes adjacent bytes: layer by layer of the
// target, then of the head, K before V. The data of several tokens are concatenated, so that they can be cut anywhere.
// Saving first discards drafts and lets the head catch up; afterwards nothing can be rewound. When that step fails the
// sequence is cleared; when only the copying fails it is unchanged.
PYMTP_API int64_t pymtp_pair_cell_bytes(const struct pymtp_pair * pair); // -1 on failure

// Returns the most bytes that pymtp_pair_save_state needs, with logits; -1 on failure.
PYMTP_API int64_t pymtp_pair_state_bytes(const struct pymtp_pair * pair);

// The properties that saved K and V depend on, beside the text, the model and the tap.
struct pymtp_cell_format {
    char    type_k[16];
    char    type_v[16];
    bool    flash_attn;
    bool    head; // K and V of the head are included
    int32_t n_ubatch;
    enum pymtp_prefill_mode prefill;
    char    weights[128]; // number of tensors in each kind of buffer, which decides on the kernels
};
PYMTP_API int pymtp_pair_cell_format(const struct pymtp_pair * pair, struct pymtp_cell_format * format);

PYMTP_API int pymtp_pair_save_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data);

// Stage K and V in a sequence that holds no tokens; it stays empty. Tokens are staged from the first on, without gaps.
// Staged data are dropped when the sequence gets tokens or is cleared. The data come from host memory (load), from
// another sequence (copy), or are the first n tokens of the sequence itself, which is cleared otherwise (retain).
PYMTP_API int pymtp_pair_load_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n,
        const uint8_t * data);
PYMTP_API int pymtp_pair_copy_cells(struct pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n);
PYMTP_API int pymtp_pair_retain_cells(struct pymtp_pair * pair, int32_t seq, int32_t n);

// Saves everything else that the sequence's tokens have left behind and, with `logits`, the logits of the last token
// if first_token could use them. needed: the bytes that it takes. data is only written when size is large enough.
PYMTP_API int pymtp_pair_save_state(
        struct pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size, size_t * needed);

// Checks whether a state can be loaded with these tokens; if not, returns PYMTP_INVALID, with the reason as the error.
// logits: whether the state includes those of the last token
PYMTP_API int pymtp_pair_check_state(
        const struct pymtp_pair * pair, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size,
        bool * logits);

// Makes a sequence whose K and V are staged hold these tokens, as if it had processed them: it continues exactly like
// the saved one, and cannot be rewound. When it fails or is cancelled, the sequence is empty.
PYMTP_API int pymtp_pair_load_state(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data,
        size_t size);

// Return the state of a sequence; -1 or NULL when there is no such sequence.
PYMTP_API int32_t pymtp_pair_n_past(const struct pymtp_pair * pair, int32_t seq); // tokens that the target holds
PYMTP_API const llama_token * pymtp_pair_tokens(const struct pymtp_pair * pair, int32_t seq); // n_past tokens
// rows of the head without drafts; it may lag behind
PYMTP_API int32_t pymtp_pair_n_head(const struct pymtp_pair * pair, int32_t seq);
PYMTP_API int32_t pymtp_pair_n_ctx (const struct pymtp_pair * pair); // tokens that fit in a sequence

// While set, the current native call and all later ones return PYMTP_CANCELLED. May be called from any thread.
PYMTP_API void pymtp_pair_cancel(struct pymtp_pair * pair, bool cancelled);
PYMTP_API void pymtp_pair_counters(const struct pymtp_pair * pair, struct pymtp_counters * counters);

// Reports the memory in use by device, at most n_max devices; returns their number, -1 on failure. Graphs of rounds
// are included once they have run.
PYMTP_API int32_t pymtp_pair_memory(const struct pymtp_pair * pair, struct pymtp_memory * memory, int32_t n_max);

// Returns the bytes of host memory that making a pair writes to in any case: K, V, states, and the bookkeeping of
// cells; -1 on failure. The system hands out more memory than it has, and kills a process that writes to too much of
// it.
PYMTP_API int64_t pymtp_min_host_memory(
    const struct pymtp_model * model, struct llama_context_params params, const struct pymtp_pair_options * options);

// Plans the memory of a model, with or without its head, and of a pair made from it, after rounds of every depth have
// run. Nothing is allocated, no weights are read, and adapters are ignored. Returns the number of devices, -1 on
// failure.
PYMTP_API int32_t pymtp_plan_memory(
        const char * path, const struct pymtp_model_options * model_options, struct llama_context_params params,
        const struct pymtp_pair_options * options, struct pymtp_memory * memory, int32_t n_max);

#ifdef __cplusplus
}
#endif
