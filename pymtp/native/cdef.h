// The C declarations that Python uses through cffi. The C compiler checks them against llama.h and pymtp.h.

// ggml.h
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                 GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_BF16, ... };

// ggml-cpu.h
enum ggml_numa_strategy { GGML_NUMA_STRATEGY_DISTRIBUTE, GGML_NUMA_STRATEGY_ISOLATE, GGML_NUMA_STRATEGY_NUMACTL, ... };

// ggml-backend.h
typedef struct ggml_backend_device * ggml_backend_dev_t;
enum ggml_backend_dev_type { GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU, ... };
enum ggml_backend_dev_type ggml_backend_dev_type(ggml_backend_dev_t device);
size_t             ggml_backend_dev_count(void);
ggml_backend_dev_t ggml_backend_dev_get(size_t index);
const char *       ggml_backend_dev_name(ggml_backend_dev_t device);
const char *       ggml_backend_dev_description(ggml_backend_dev_t device);
void               ggml_backend_dev_memory(ggml_backend_dev_t device, size_t * free, size_t * total);

// llama.h
typedef int32_t llama_token;
struct llama_model;
struct llama_vocab;
struct llama_context;
enum llama_flash_attn_type { LLAMA_FLASH_ATTN_TYPE_AUTO, LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED,
        ... };
enum llama_rope_scaling_type { LLAMA_ROPE_SCALING_TYPE_NONE, LLAMA_ROPE_SCALING_TYPE_LINEAR,
        LLAMA_ROPE_SCALING_TYPE_YARN, ... };
enum llama_split_mode { LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_ROW, ... };
struct llama_context_params {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    int32_t  n_threads;
    int32_t  n_threads_batch;
    enum llama_rope_scaling_type rope_scaling_type;
    enum llama_flash_attn_type flash_attn_type;
    float    rope_freq_base;
    float    rope_freq_scale;
    float    yarn_ext_factor;
    float    yarn_attn_factor;
    float    yarn_beta_fast;
    float    yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    enum ggml_type type_k;
    enum ggml_type type_v;
    bool     offload_kqv;
    ...;
};

void llama_backend_init(void);
size_t llama_max_devices(void);
void llama_numa_init(enum ggml_numa_strategy numa);
bool llama_supports_gpu_offload(void);
const char * llama_print_system_info(void);
struct llama_context_params llama_context_default_params(void);

uint64_t llama_model_n_params(const struct llama_model * model);
int32_t  llama_model_meta_count(const struct llama_model * model);
int32_t  llama_model_meta_key_by_index(const struct llama_model * model, int32_t i, char * buf, size_t buf_size);
int32_t  llama_model_meta_val_str_by_index(const struct llama_model * model, int32_t i, char * buf, size_t buf_size);
const char * llama_model_chat_template(const struct llama_model * model, const char * name);

const struct llama_vocab * llama_model_get_vocab(const struct llama_model * model);
int32_t      llama_vocab_n_tokens(const struct llama_vocab * vocab);
const char * llama_vocab_get_text(const struct llama_vocab * vocab, llama_token token);
enum llama_token_attr { LLAMA_TOKEN_ATTR_UNKNOWN, LLAMA_TOKEN_ATTR_CONTROL, LLAMA_TOKEN_ATTR_USER_DEFINED, ... };
enum llama_token_attr llama_vocab_get_attr(const struct llama_vocab * vocab, llama_token token);
bool         llama_vocab_is_eog(const struct llama_vocab * vocab, llama_token token);
llama_token  llama_vocab_bos(const struct llama_vocab * vocab);
llama_token  llama_vocab_eos(const struct llama_vocab * vocab);

// pymtp.h
enum pymtp_tap    { PYMTP_TAP_POST_NORM, PYMTP_TAP_PRE_NORM };
enum pymtp_status { PYMTP_OK, PYMTP_FULL, PYMTP_CANCELLED, PYMTP_DEAD_END, PYMTP_INVALID, PYMTP_FAILED, PYMTP_BROKEN,
        ... };
struct pymtp_model;
struct pymtp_file_info {
    char    architecture[64];
    int32_t n_layer;
    int32_t n_layer_mtp;
    char    head_absent[256];
    int32_t tap;
    int32_t n_embd;
    int32_t n_ctx_train;
    char    weight_type[32];
};
struct pymtp_file_part {
    char    path[4096];
    int64_t header_bytes;
};
struct pymtp_grammar;
struct pymtp_grammar * pymtp_grammar_init(const struct pymtp_model * model, const char * text);
void                   pymtp_grammar_free(struct pymtp_grammar * grammar);
struct pymtp_logit_bias {
    llama_token token;
    float       bias;
};
struct pymtp_sampling {
    double   temperature;
    int32_t  top_k;
    double   top_p;
    double   min_p;
    uint64_t seed;
    int32_t  penalty_last_n;
    float    repeat_penalty;
    float    frequency_penalty;
    float    presence_penalty;
    int32_t  n_bias;
    const struct pymtp_logit_bias * bias;
    const struct pymtp_grammar * grammar;
    int32_t  n_grammar_prefix;
    int32_t  n_logprobs;
};
struct pymtp_logprob {
    llama_token token;
    double      logprob;
};
struct pymtp_counters {
    double  prefill_seconds;
    double  head_sync_seconds;
    double  draft_seconds;
    double  verify_seconds;
    double  rewind_seconds;
    double  sample_seconds;
    int64_t target_decodes;
    int64_t draft_decodes;
    int64_t graphs_reused;
    int64_t hidden_bytes;
    int64_t logits_bytes;
    int64_t embeddings_bytes;
    int64_t draw_bytes;
    int64_t output_buffer_bytes;
    int64_t sequence_bytes;
    int64_t saved_bytes;
    int64_t loaded_bytes;
};
enum pymtp_prefill_mode { PYMTP_PREFILL_FUSED, PYMTP_PREFILL_HOST_COPY, PYMTP_PREFILL_ALL_OUTPUTS };
enum pymtp_sample_on { PYMTP_SAMPLE_ON_AUTO, PYMTP_SAMPLE_ON_HOST, PYMTP_SAMPLE_ON_DEVICE };
struct pymtp_pair_options {
    int32_t n_draft;
    int32_t n_seq_max;
    int32_t n_outputs;
    enum pymtp_tap          tap;
    enum pymtp_prefill_mode prefill;
    enum pymtp_sample_on      sample_on;
    int32_t n_draft_vocab;
    bool    adaptive_draft_vocab;
    bool    embeddings;
    bool    trace;
    bool    all_threads;
};
struct pymtp_memory {
    char    device[64];
    bool    host;
    int64_t weights;
    int64_t kv;
    int64_t states;
    int64_t compute;
    int64_t head_kv;
    int64_t head_compute;
    int64_t kept_rows;
    int64_t draft_vocab;
};
struct pymtp_pair;

const char * pymtp_last_error(void);
typedef void (*pymtp_log_callback)(int level, const char * text);
void pymtp_set_log(pymtp_log_callback callback, int level);
typedef bool (*pymtp_poll_callback)(void);
void pymtp_set_poll(pymtp_poll_callback callback);

const char * pymtp_build_llama_commit(void);
const char * pymtp_build_patches(void);
const char * pymtp_build_compiler(void);
const char * pymtp_build_type(void);
const char * pymtp_build_cuda_architectures(void);

int pymtp_inspect(const char * path, const char * head, struct pymtp_file_info * info);
int32_t pymtp_file_parts(const char * path, struct pymtp_file_part * parts, int32_t n_max);
struct pymtp_model_options {
    int32_t n_gpu_layers;
    bool    mtp;
    const char * head;
    bool    vocab_only;
    bool    use_mmap;
    bool    use_mlock;
    enum llama_split_mode split_mode;
    int32_t main_gpu;
    int32_t n_tensor_split;
    const float * tensor_split;
    int32_t n_overrides;
    const char * const * patterns;
    const char * const * buffers;
    int32_t n_moe_overrides;
    int32_t n_lora;
    const char * const * lora;
    const float        * lora_scales;
};
int pymtp_check_model_options(const struct pymtp_model_options * options);
int pymtp_check_adapters(const char * path, const struct pymtp_model_options * options);
struct pymtp_model * pymtp_model_load(const char * path, const struct pymtp_model_options * options);
void                 pymtp_model_free(struct pymtp_model * model);
struct llama_model * pymtp_model_get(const struct pymtp_model * model);
struct pymtp_head_norm {
    char   name[64];
    double mean;
};
int32_t pymtp_head_norms(const struct pymtp_model * model, struct pymtp_head_norm * norms, int32_t n_max);
int32_t pymtp_tokenize(const struct pymtp_model * model, const char * text, int32_t length, llama_token * tokens,
        int32_t n_max, bool add_special);
int32_t pymtp_token_piece(const struct pymtp_model * model, llama_token token, char * piece, int32_t n_max);

struct pymtp_pair * pymtp_pair_init(const struct pymtp_model * model, struct llama_context_params params,
                                    const struct pymtp_pair_options * options);
void    pymtp_pair_free(struct pymtp_pair * pair);
int     pymtp_pair_prefill(struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens,
                           const int32_t * lengths, bool all, const float ** logits);
const float * pymtp_pair_embeddings(const struct pymtp_pair * pair);
int     pymtp_pair_verify(struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n,
                          const float ** logits);
int     pymtp_pair_set_sampling(struct pymtp_pair * pair, int32_t seq, const struct pymtp_sampling * sampling);
int     pymtp_pair_first_token(struct pymtp_pair * pair, int32_t seq, llama_token * token);
struct pymtp_outcome {
    int32_t n;
    int32_t status;
    int32_t position;
};
int     pymtp_outcome_error(const struct pymtp_outcome * outcome);
int     pymtp_pair_draft_tokens(struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs,
        const llama_token * tokens, int32_t n, llama_token * drafts, float * confidences,
        struct pymtp_outcome * outcomes);
int     pymtp_pair_verify_tokens(struct pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs,
                                 const llama_token * tokens, const int32_t * lengths, llama_token * sampled,
                                 struct pymtp_outcome * outcomes);
int32_t pymtp_pair_logprobs(const struct pymtp_pair * pair, int32_t seq, const struct pymtp_logprob ** logprobs);
llama_token pymtp_sample(const struct pymtp_sampling * sampling, const float * logits, int32_t n_vocab,
        int64_t position, const llama_token * prefix, int32_t n, float * confidence);
int32_t pymtp_pair_draft_vocab_size(const struct pymtp_pair * pair);
bool    pymtp_pair_in_draft_vocab(const struct pymtp_pair * pair, llama_token token);
void pymtp_pair_reset_draft_vocab(struct pymtp_pair * pair);
int     pymtp_pair_rewind(struct pymtp_pair * pair, int32_t seq, int32_t n_keep);
int     pymtp_pair_copy(struct pymtp_pair * pair, int32_t from, int32_t to);
int     pymtp_pair_move(struct pymtp_pair * pair, int32_t from, int32_t to);
int     pymtp_pair_clear(struct pymtp_pair * pair, int32_t seq);
int64_t pymtp_pair_cell_bytes(const struct pymtp_pair * pair);
int64_t pymtp_pair_state_bytes(const struct pymtp_pair * pair);
struct pymtp_cell_format {
    char    type_k[16];
    char    type_v[16];
    bool    flash_attn;
    bool    head;
    int32_t n_ubatch;
    enum pymtp_prefill_mode prefill;
    char    weights[128];
};
int     pymtp_pair_cell_format(const struct pymtp_pair * pair, struct pymtp_cell_format * options);
int     pymtp_pair_save_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data);
int     pymtp_pair_load_cells(struct pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, const uint8_t * data);
int     pymtp_pair_copy_cells(struct pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n);
int     pymtp_pair_retain_cells(struct pymtp_pair * pair, int32_t seq, int32_t n);
int     pymtp_pair_save_state(struct pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size,
                              size_t * needed);
int     pymtp_pair_check_state(const struct pymtp_pair * pair, const llama_token * tokens, int32_t n,
                               const uint8_t * data, size_t size, bool * logits);
int     pymtp_pair_load_state(struct pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n,
                              const uint8_t * data, size_t size);
int32_t pymtp_pair_n_past(const struct pymtp_pair * pair, int32_t seq);
const llama_token * pymtp_pair_tokens(const struct pymtp_pair * pair, int32_t seq);
int32_t pymtp_pair_n_head(const struct pymtp_pair * pair, int32_t seq);
int32_t pymtp_pair_n_ctx(const struct pymtp_pair * pair);
void    pymtp_pair_cancel(struct pymtp_pair * pair, bool cancelled);
void    pymtp_pair_counters(const struct pymtp_pair * pair, struct pymtp_counters * counters);
int32_t pymtp_pair_memory(const struct pymtp_pair * pair, struct pymtp_memory * memory, int32_t n_max);
int64_t pymtp_min_host_memory(const struct pymtp_model * model, struct llama_context_params params,
                           const struct pymtp_pair_options * options);
int32_t pymtp_plan_memory(const char * path, const struct pymtp_model_options * model_options,
                          struct llama_context_params params, const struct pymtp_pair_options * options,
                          struct pymtp_memory * memory, int32_t n_max);

extern "Python" void pymtp_on_log(int level, const char * text);
extern "Python" bool pymtp_on_poll(void);

// compare/pymtp_compare.h
enum pymtp_fault { PYMTP_FAULT_NONE, PYMTP_FAULT_EMPTY_HEAD, PYMTP_FAULT_SHIFTED_ROWS, PYMTP_FAULT_DECODE_THROWS,
                   PYMTP_FAULT_CLEAR_THROWS, PYMTP_FAULT_MIXED_CHAIN, PYMTP_FAULT_MORE_OUTPUTS,
                   PYMTP_FAULT_ASSERTION, PYMTP_FAULT_ASSERTION_THREADS, PYMTP_FAULT_ASSERTION_THREAD,
                   PYMTP_FAULT_COPY_THROWS };
void    pymtp_pair_inject_fault(struct pymtp_pair * pair, enum pymtp_fault fault);
int     pymtp_pair_force_device_ops(struct pymtp_pair * pair, bool on);
int     pymtp_pair_draft_step(struct pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits);
const char * pymtp_pair_trace(struct pymtp_pair * pair);
struct pymtp_op_time {
    char    op[32];
    char    weights[16];
    int64_t nodes;
    double  seconds;
    double  waiting_seconds;
    int64_t weight_bytes;
};
int     pymtp_pair_time_ops(struct pymtp_pair * pair, bool on);
int32_t pymtp_pair_op_times(struct pymtp_pair * pair, struct pymtp_op_time * times, int32_t n_max);
int     pymtp_read_memory(size_t bytes, int32_t n_threads, int32_t n_times, double * seconds);
int     pymtp_pair_head_state(struct pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size, size_t * needed);

// pymtp_depth.h
struct pymtp_costs;
struct pymtp_costs * pymtp_costs_init(void);
void pymtp_costs_free(struct pymtp_costs * costs);
void     pymtp_costs_reset(struct pymtp_costs * costs);
void     pymtp_watch_cpu_quota(const char * folder);
uint32_t pymtp_thread_count_changes(void);
uint32_t pymtp_thread_count_trials(void);
void pymtp_costs_seed(
        struct pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, double verify_seconds);
void pymtp_costs_observe(
        struct pymtp_costs * costs, int32_t n_seqs, int32_t drafted, double draft_seconds, int32_t verified,
        double verify_seconds);
bool pymtp_costs_rounds(
        const struct pymtp_costs * costs, int32_t n_seqs, int32_t max_depth, double * seconds);
struct pymtp_acceptance;
struct pymtp_acceptance * pymtp_acceptance_init(struct pymtp_acceptance * prior);
void pymtp_acceptance_free(struct pymtp_acceptance * acceptance);
void pymtp_acceptance_observe(
        struct pymtp_acceptance * acceptance, int32_t judged, int32_t correct, int32_t tokens);
void pymtp_acceptance_rates(const struct pymtp_acceptance * acceptance, int32_t n, double * rates);
struct pymtp_depth;
struct pymtp_depth * pymtp_depth_init(struct pymtp_costs * costs);
void    pymtp_depth_free(struct pymtp_depth * depth);
int32_t pymtp_depth_choose(
        struct pymtp_depth * depth, int32_t n_seqs, struct pymtp_acceptance * const * sequences,
        const int32_t * limits, int32_t max_depth, int32_t n_idle);
int32_t pymtp_depth_idle_rounds(const struct pymtp_depth * depth);
int32_t pymtp_depth_n_to_verify(const struct pymtp_depth * depth, int32_t n_drafts);
void    pymtp_depth_observe(
        struct pymtp_depth * depth, int32_t n_seqs, struct pymtp_acceptance * const * sequences,
        const int32_t * judged, const int32_t * correct, const int32_t * n_tokens, int32_t drafted,
        double draft_seconds, int32_t verified, double verify_seconds);
