// What Python calls. A pair is a target and a draft context of one model, driven together: the target verifies, the
// draft context runs the multi-token-prediction head. Nothing here throws; a call that fails says why in
// pymtp_last_error(). compare/pymtp_compare.h has what only tests and comparisons call.
//
// The head's row i takes the target's hidden state at i-1 (zero at i = 0) and token i, stands at position i, and
// predicts token i+1. A draft step past the first takes the head's own hidden state in the target's stead.
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
    PYMTP_FULL      =  1, // more tokens than n_ctx; nothing was changed
    PYMTP_CANCELLED =  2, // the sequences of the call are empty now, all others are as they were
    PYMTP_DEAD_END  =  3, // the grammar allows no token; the sequence holds the tokens before that position
    PYMTP_INVALID   = -1, // the caller broke a rule; nothing was changed
    PYMTP_FAILED    = -2, // llama.cpp failed; the sequences of the call are empty now, all others are as they were
    PYMTP_BROKEN    = -3, // this call or one before it left what cannot be put right; the pair takes no more calls
};

// the last error of this thread, with llama.cpp's own words where it had any; never NULL
PYMTP_API const char * pymtp_last_error(void);

// log lines at or above the level go to the callback, from whatever thread llama.cpp logs; NULL: nowhere
typedef void (*pymtp_log_callback)(int level, const char * text);
PYMTP_API void pymtp_set_log(pymtp_log_callback callback, int level);

// asked about 20 times a second while a native call runs, on the calling thread; true cancels that call
typedef bool (*pymtp_poll_callback)(void);
PYMTP_API void pymtp_set_poll(pymtp_poll_callback callback);

// constants of the build
PYMTP_API const char * pymtp_build_llama_commit(void);
PYMTP_API const char * pymtp_build_patches(void); // names, separated by ";"
PYMTP_API const char * pymtp_build_compiler(void);
PYMTP_API const char * pymtp_build_type(void);
PYMTP_API const char * pymtp_build_cuda_architectures(void);

// What a GGUF file says of itself, read before llama.cpp builds a model from it.
struct pymtp_file_info {
    char    architecture[64];
    int32_t n_layer;      // blocks of the trunk
    int32_t n_layer_mtp;  // blocks of the head, where its tensors are in the file
    char    head_absent[256]; // why a head that the file announces is not there, "" where it is or none is announced
    int32_t tap;          // enum pymtp_tap, -1 when the file does not say
    int32_t n_embd;
    int32_t n_ctx_train;
    char    weight_type[32]; // the type that most bytes of this file's tensors have
};

// head: the file of a head of its own, which goes with the model; NULL without.
PYMTP_API int pymtp_inspect(const char * path, const char * head, struct pymtp_file_info * info);

// A file of a model: how many bytes its keys and the names, types and shapes of its tensors take at its beginning.
struct pymtp_file_part {
    char    path[4096];
    int64_t header_bytes;
};

// The files of a model, at most n_max of them. Returns how many there are, -1 on failure.
PYMTP_API int32_t pymtp_file_parts(const char * path, struct pymtp_file_part * parts, int32_t n_max);

// A share in a loaded model. The weights are freed with the last of these and of the pairs made from them, whatever the
// order: Python's garbage collector, which ends them, keeps none.
struct pymtp_model;

// How a model is loaded, with llama.cpp's names and meanings.
struct pymtp_model_options {
    int32_t n_gpu_layers; // -1 for all
    bool    mtp;          // load the head's tensors too
    const char * head;    // where the head is in a file of its own: that file; NULL where it is in the model's
    bool    vocab_only;   // metadata and vocabulary, no tensors
    bool    use_mmap;
    bool    use_mlock;
    enum llama_split_mode split_mode;
    int32_t main_gpu;     // the only GPU of LLAMA_SPLIT_MODE_NONE, among those that there are
    int32_t n_tensor_split;
    const float * tensor_split; // shares of the GPUs, at most llama_max_devices() of them
    int32_t n_overrides;
    const char * const * patterns; // regular expressions: the first that is found in a tensor's name decides
    const char * const * buffers;  // and the names of the types of buffers that go with them
    int32_t n_moe_overrides;       // so many of them, the last ones, are for the experts of the first layers
    int32_t n_lora;
    const char * const * lora;     // files of adapters, and what each is multiplied by
    const float        * lora_scales;
};

// Whether a model can be loaded with these options here: PYMTP_INVALID for a pattern that is no regular expression, a buffer
// that there is none of, and a GPU that is not there.
PYMTP_API int pymtp_check_model_options(const struct pymtp_model_options * options);

// Whether a model of the file can be loaded with the adapters. Its weights are not read.
PYMTP_API int pymtp_check_adapters(const char * path, const struct pymtp_model_options * options);

// NULL on failure.
PYMTP_API struct pymtp_model * pymtp_model_load(const char * path, const struct pymtp_model_options * options);
PYMTP_API void pymtp_model_free(struct pymtp_model * model);
PYMTP_API struct llama_model * pymtp_model_get(const struct pymtp_model * model);

// A norm of a model's head, by the name of its tensor, and the mean of its weights.
struct pymtp_norm {
    char   name[64];
    double mean;
};

// The norms of a head that is loaded, at most n_max of them. Returns how many they are, 0 without a head, -1 on failure.
PYMTP_API int32_t pymtp_head_norms(const struct pymtp_model * model, struct pymtp_norm * norms, int32_t n_max);

// As llama_tokenize, special tokens in the text taken as such, and llama_token_to_piece, control tokens left out
// but for the marks of answers.
// INT32_MIN on failure.
PYMTP_API int32_t pymtp_tokenize(
        const struct pymtp_model * model, const char * text, int32_t length, llama_token * tokens, int32_t n_max, bool add_special);
PYMTP_API int32_t pymtp_token_piece(const struct pymtp_model * model, llama_token token, char * piece, int32_t n_max);

struct pymtp_pair;

// How the prompt's hidden states reach the head.
enum pymtp_prefill_mode {
    PYMTP_PREFILL_FUSED       = 0, // they do not leave the device: the target's graph fills the head's cache
    PYMTP_PREFILL_HOST_COPY   = 1, // to the host, back up and through the whole block, as llama.cpp does it
    PYMTP_PREFILL_ALL_OUTPUTS = 2, // every token an output with embeddings, as the first implementations did
};

// Where tokens are sampled within graphs.
enum pymtp_draws {
    PYMTP_DRAWS_AUTO   = 0, // as DEVICE on CUDA and Vulkan devices that have the logits, as HOST elsewhere
    PYMTP_DRAWS_HOST   = 1, // the host samples from rows of logits
    PYMTP_DRAWS_DEVICE = 2, // the graph picks the likeliest token, or the candidates of top_k for the host to sample from;
                            // rows come to the host where that is not enough: top_k of none or above 128, bias,
                            // penalties, a grammar, and logprobs
};

struct pymtp_pair_options {
    int32_t n_draft;    // the most drafts a round, 0 for no draft context
    int32_t n_seq_max;  // sequences, each with n_ctx / n_seq_max tokens
    int32_t n_outputs;  // the most rows of logits that a batch may have, where all are asked for
    enum pymtp_tap          tap;
    enum pymtp_prefill_mode prefill;
    enum pymtp_draws        draws;
    int32_t n_draft_vocab;     // tokens that drafts are made over in the fused mode, see draft_vocab.h; 0: all
    bool    weigh_draft_vocab; // make drafts over all while that is worth more
    bool    embeddings; // keep the embeddings of prompts: every token an output
    bool    trace;      // record the nodes that are computed
    bool    all_threads; // as many threads as asked for compute each graph, whatever else runs and however small it is
};

// A grammar in GBNF with the rule "root", read for a model's vocabulary. NULL, with the error set, when it is refused.
struct pymtp_grammar;
PYMTP_API struct pymtp_grammar * pymtp_grammar_init(const struct pymtp_model * model, const char * text);
PYMTP_API void pymtp_grammar_free(struct pymtp_grammar * grammar);

struct pymtp_logit_bias {
    llama_token token;
    float       bias;
};

// How tokens are sampled: the steps in llama.cpp's default order. Counts and tokens are checked; other values outside their
// range are the caller's to refuse.
struct pymtp_sampling {
    double   temperature;       // 0: the most likely token, what follows has no part in it
    int32_t  top_k;             // 0: all
    double   top_p;
    double   min_p;
    uint64_t seed;
    int32_t  penalty_last_n;    // tokens that penalties look back at, -1: all
    float    repeat_penalty;    // 1: none
    float    frequency_penalty; // 0: none
    float    presence_penalty;  // 0: none
    int32_t  n_bias;
    const struct pymtp_logit_bias * bias;
    const struct pymtp_grammar * grammar; // NULL: any text
    int32_t  n_grammar_prefix;  // tokens at the end of the prompt that the grammar's text begins with
    int32_t  n_logprobs;        // likeliest tokens to report with each token sampled, -1: report nothing
};

// Of the softmax over the whole vocabulary at temperature 1, before bias, penalties, grammar and filters.
struct pymtp_logprob {
    llama_token token;
    double      logprob;
};

// Work done since the pair was made. Seconds are wall time; a phase ends when its results are on the host.
struct pymtp_counters {
    double  prefill_seconds;
    double  head_sync_seconds; // the prompt's rows going through the head, where the target's graph does not do it
    double  draft_seconds;     // with the tokens that the head had yet to take
    double  verify_seconds;
    double  rewind_seconds;
    double  sample_seconds;    // of draft and verify: sampling tokens
    int64_t target_decodes;
    int64_t draft_decodes;
    int64_t graphs_reused;     // ubatches whose graph was that of the one before
    int64_t hidden_bytes;      // copied from the devices to the host
    int64_t logits_bytes;
    int64_t embeddings_bytes;
    int64_t draw_bytes;        // what tokens were sampled from on the host, or sampled tokens themselves
    int64_t output_buffer_bytes; // not a sum: the host memory that they are copied to
    int64_t sequence_bytes;      // copied from one sequence to another
    int64_t saved_bytes;         // of sequences, to the host's memory
    int64_t loaded_bytes;        // from there
};

// Bytes on one device. What the head is for comes last.
struct pymtp_memory {
    char    device[64];
    bool    host;
    int64_t weights;
    int64_t kv;           // K and V of the trunk
    int64_t states;       // recurrent states, with the inputs of the last tokens
    int64_t compute;      // the target's graphs
    int64_t head_kv;
    int64_t head_compute; // the draft context's graphs
    int64_t kept_rows;    // hidden rows that the head has yet to take
    int64_t draft_vocab;  // rows of the output layer that drafts are made over
};

// The context types, n_seq_max, n_rs_seq, the numbers of outputs and the callbacks in params are set here. NULL on
// failure.
PYMTP_API struct pymtp_pair * pymtp_pair_init(
        const struct pymtp_model * model, struct llama_context_params params, const struct pymtp_pair_options * options);
PYMTP_API void pymtp_pair_free(struct pymtp_pair * pair);

// Takes tokens after those that the sequences hold, in pieces of n_batch, through the target and the head. seqs is in
// rising order; tokens are those of the first sequence, then those of the next; lengths says how many.
// logits: the n_vocab floats of each sequence's last token, or of every token; valid until the next prefill.
PYMTP_API int pymtp_pair_prefill(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
        const int32_t * lengths, bool all, const float ** logits);

// The n_embd floats of every token of the last prefill, where the pair was made to keep them.
PYMTP_API const float * pymtp_pair_embeddings(const struct pymtp_pair * pair);

// Takes 1 to 1+n_draft tokens through the target. logits: n rows of n_vocab floats, valid until the next call.
PYMTP_API int pymtp_pair_verify(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits);

// How the tokens of a sequence are sampled from now on: what the three calls below need. Biases and grammar are copied; the
// grammar's text begins with the first token sampled.
PYMTP_API int pymtp_pair_sampling(struct pymtp_pair * pair, int32_t seq, const struct pymtp_sampling * sampling);

// The token after a prompt, from the logits of the last prefill.
PYMTP_API int pymtp_pair_first_token(struct pymtp_pair * pair, int32_t seq, llama_token * token);

// What came of one sequence of a call for several.
struct pymtp_outcome {
    int32_t n;        // tokens
    int32_t status;   // PYMTP_OK, or why the target has no token at position: PYMTP_DEAD_END; PYMTP_FAILED where a logit is
                      // no number, and the sequence is empty now
    int32_t position;
};

// The outcome's status, with its words in pymtp_last_error().
PYMTP_API int pymtp_outcome_error(const struct pymtp_outcome * outcome);

// For sequences in rising order, n draft steps each: each from the token sampled in the one before, the first from the
// sequence's of tokens, which follows the last that it holds. drafts, confidences: n of each sequence. confidences: the head's
// probability of each draft, among the likeliest candidates or, where the graph took the likeliest, among all.
// Sequences side by side take one launch. The outcome's n are the drafts before the first step whose logits are no finite
// numbers: that is no failure, for a head never decides on the text.
PYMTP_API int pymtp_pair_draft_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
        llama_token * drafts, float * confidences, struct pymtp_outcome * outcomes);

// As pymtp_pair_verify, for lengths[k] tokens of each sequence, in rising order, and samples the token after each row, until
// one is not what the next row holds: of as many places in sampled, the outcome's n are used, at least 1. Tokens and places
// of a sequence follow those of the one before. Sequences side by side take one launch, with as many rows each: there must
// be room for those of the longest. Rows of padding are not sampled from, and are taken back.
PYMTP_API int pymtp_pair_verify_tokens(
        struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        llama_token * sampled, struct pymtp_outcome * outcomes);

// For each token that the last first_token or verify_tokens sampled for a sequence, where asked for: its own, then those of
// the likeliest. Returns how many in all; valid until the next sample of the sequence.
PYMTP_API int32_t pymtp_pair_logprobs(const struct pymtp_pair * pair, int32_t seq, const struct pymtp_logprob ** logprobs);

// One sample by itself: the token for a position, from n_vocab logits and the n tokens before it; a grammar's text begins
// with the first of them. LLAMA_TOKEN_NULL when a logit is not a number, the grammar allows none, or an argument is wrong.
PYMTP_API llama_token pymtp_sample(
        const struct pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence);

// How many tokens drafts are made over.
PYMTP_API int32_t pymtp_pair_draft_vocab(const struct pymtp_pair * pair);
// Whether a token was one of them when drafts were made last.
PYMTP_API bool pymtp_pair_drafts_over(const struct pymtp_pair * pair, llama_token token);
// The text so far, which was none, does not tell whether the set is right for the text to come.
PYMTP_API void pymtp_pair_forget_chosen(struct pymtp_pair * pair);

// Goes back to the first n_keep tokens. Only the drafts of the last verification can be taken back, before the next draft:
// the state of the recurrent layers is as it was before them.
PYMTP_API int  pymtp_pair_rewind(struct pymtp_pair * pair, int32_t seq, int32_t n_keep);
// Copies what a sequence holds to another, which is empty: it goes on as the first would, and as first_token after a
// prompt. Its sampling stays its own. What was drafted is forgotten, and the copy cannot be rewound. Where it fails or is
// cancelled, the other is empty, and the first as it was.
PYMTP_API int  pymtp_pair_copy(struct pymtp_pair * pair, int32_t from, int32_t to);
// The same, and its sampling goes along; the first is empty then.
PYMTP_API int  pymtp_pair_move(struct pymtp_pair * pair, int32_t from, int32_t to);
PYMTP_API int  pymtp_pair_clear(struct pymtp_pair * pair, int32_t seq);

// What a sequence holds, in the host's memory. A token's K and V are pymtp_pair_cell_bytes side by side: layer by layer of
// the target and then of the head, K before V. Those of n tokens from the first on are one after the other, so that they can be cut
// anywhere. Before anything is saved, what was drafted is forgotten and the head takes what it has yet to take; nothing can be
// rewound then. Where that fails the sequence is empty, where saving itself does it holds what it held.
PYMTP_API int64_t pymtp_pair_cell_bytes(const struct pymtp_pair * pair); // -1 on failure

// The most that pymtp_pair_save_state takes, with logits; -1 on failure.
PYMTP_API int64_t pymtp_pair_state_bytes(const struct pymtp_pair * pair);

// What they depend on, beside the text, the model and the tap.
struct pymtp_cell_options {
    char    type_k[16];
    char    type_v[16];
    bool    flash_attn;
    bool    head; // K and V of the head are among them
    int32_t n_ubatch;
    enum pymtp_prefill_mode prefill;
    char    weights[128]; // how many of the model's tensors each kind of buffer has: it decides on the kernels
};
PYMTP_API int pymtp_pair_cell_options(const struct pymtp_pair * pair, struct pymtp_cell_options * options);

PYMTP_API int pymtp_pair_save_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data);

// K and V are put into a sequence that holds no tokens, which it does not do after them either: from their first token on, where
// it has those before. They are forgotten when it is given tokens, or emptied. From the host's memory; from another sequence;
// and those that the sequence has itself, of its first n tokens: it is emptied but for them.
PYMTP_API int pymtp_pair_load_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, const uint8_t * data);
PYMTP_API int pymtp_pair_copy_cells(struct pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n);
PYMTP_API int pymtp_pair_keep_cells(struct pymtp_pair * pair, int32_t seq, int32_t n);

// All else that the tokens held leave behind, and with logits those of the last token, where first_token could have them.
// needed: the bytes it takes. They are written where size is enough.
PYMTP_API int pymtp_pair_save_state(
        struct pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size, size_t * needed);

// Whether a state could be loaded with these tokens; else PYMTP_INVALID, and the error says what does not fit. logits: whether it
// has those of the last token.
PYMTP_API int pymtp_pair_check_state(
        const struct pymtp_pair * pair, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size, bool * logits);

// A sequence whose K and V were put there holds these tokens, as if it had read them: it goes on as the one that was saved
// would, and cannot be rewound. Where it fails or is cancelled the sequence is empty.
PYMTP_API int pymtp_pair_load_state(
        struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size);

PYMTP_API int32_t pymtp_pair_n_past(const struct pymtp_pair * pair, int32_t seq); // tokens that the target holds; -1, and so
                                                                                  // below, where there is no such sequence
PYMTP_API const llama_token * pymtp_pair_tokens(const struct pymtp_pair * pair, int32_t seq); // n_past of them
PYMTP_API int32_t pymtp_pair_n_head(const struct pymtp_pair * pair, int32_t seq); // rows of the head, drafts not counted; it may be behind
PYMTP_API int32_t pymtp_pair_n_ctx (const struct pymtp_pair * pair);              // tokens that fit in a sequence

// From any thread: while set, the native call that runs, and any after it, ends as PYMTP_CANCELLED.
PYMTP_API void pymtp_pair_cancel(struct pymtp_pair * pair, bool cancelled);
PYMTP_API void pymtp_pair_counters(const struct pymtp_pair * pair, struct pymtp_counters * counters);

// The memory in use by device, at most n_max of them; returns how many, -1 on failure. Graphs of rounds are counted once they have run.
PYMTP_API int32_t pymtp_pair_memory(const struct pymtp_pair * pair, struct pymtp_memory * memory, int32_t n_max);

// Bytes of the host's memory that are written to as a pair is made, whatever it computes: K, V, states, and the bookkeeping of
// cells; -1 on failure. The system gives more than it has, and ends a process once that is written to.
PYMTP_API int64_t pymtp_least_memory(
    const struct pymtp_model * model, struct llama_context_params params, const struct pymtp_pair_options * options);

// What a model, with its head or without, and a pair made from it would take once rounds of every depth have run. Nothing
// of it is allocated, no weights are read, and adapters are left out. Returns how many devices, -1 on failure.
PYMTP_API int32_t pymtp_plan_memory(
        const char * path, const struct pymtp_model_options * model_options, struct llama_context_params params,
        const struct pymtp_pair_options * options, struct pymtp_memory * memory, int32_t n_max);

#ifdef __cplusplus
}
#endif
