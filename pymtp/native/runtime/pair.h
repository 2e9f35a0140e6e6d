// A pair: a target context and a draft context of one model, and the state of their sequences.
//
// pair.cpp makes pairs, prefill.cpp processes prompts, rounds.cpp drafts, verifies and rewinds, head.cpp keeps the head
// up to date with the target, copy.cpp copies and moves sequences, save.cpp saves sequences to host memory and loads
// them, pair_sampling.cpp samples tokens, pair_draft_vocab.cpp maintains the draft vocabulary, and memory.cpp sums up
// memory. pair_api.cpp implements the C API. The files in compare/ serve only comparisons and tests.
#pragma once

#include "batch.h"
#include "compare/host_hidden.h"
#include "compare/pymtp_compare.h"
#include "compare/trace.h"
#include "draft_vocab.h"
#include "file_rows.h"
#include "graph_slots.h"
#include "callbacks.h"
#include "model.h"
#include "pymtp.h"
#include "sequence.h"

#include "ggml-cpu.h"
#include "llama.h"
#include "op_times.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

struct pymtp_context_deleter {
    void operator()(llama_context * ctx) const { llama_free(ctx); }
};
using pymtp_context_ptr = std::unique_ptr<llama_context, pymtp_context_deleter>;

struct pymtp_threads_deleter {
    void operator()(ggml_threadpool * threads) const { ggml_threadpool_free(threads); }
};

// Bytes that llama.cpp (llama_kv_cells) uses for each cell of a context beside K and V.
extern const int64_t pymtp_cell_metadata_bytes;

constexpr int32_t PYMTP_MAX_DRAFTS   = 64; // largest number of drafts per sequence in a round
// largest number of tokens that the head may lag behind the target, see pymtp_set_fused_sync
constexpr int32_t PYMTP_MAX_HEAD_LAG = 63;

struct pymtp_sample_batch;
struct pymtp_sample_job;

struct pymtp_pair {
    std::shared_ptr<llama_model> model; // the first member, so that it is destroyed last

    std::unique_ptr<pymtp_trace>     trace;    // null unless asked for
    std::unique_ptr<pymtp::op_times> op_times; // null unless asked for

    // The thread pool that the graphs of both contexts share; without it, ggml would make and free a pool for each
    // graph. The threads themselves belong to the whole process (kernels/threads/team.h).
    std::unique_ptr<ggml_threadpool, pymtp_threads_deleter> threads;

    pymtp_context_ptr target;
    pymtp_context_ptr draft; // null without drafts

    pymtp_pair_options options = {};

    int32_t n_vocab       = 0;
    int32_t n_embd        = 0;
    int32_t n_ctx         = 0; // number of tokens that fit in one sequence
    int32_t n_batch       = 0;
    int32_t n_outputs     = 0; // largest number of rows of logits in a batch
    int32_t max_head_rows = 0; // largest number of rows that the draft context processes at once

    // The draft vocabulary; null if drafts always use the whole vocabulary.
    std::unique_ptr<pymtp_draft_vocab>     draft_vocab;
    std::shared_ptr<const pymtp_file_rows> file_rows;
    // rows of the reduced output layer that must be written to the device
    pymtp_draft_vocab::rows                stale_rows = pymtp_draft_vocab::rows::none;
    bool drafts_reduced = false; // whether the last drafts used the draft vocabulary

    // largest number of candidates that a graph may pick from a row of logits, see pymtp_max_candidates
    size_t max_candidates = 0;

    std::vector<pymtp_sequence>        sequences;
    std::unique_ptr<pymtp_host_hidden> host_hidden; // null without drafts

    pymtp_fault       fault = PYMTP_FAULT_NONE;
    std::atomic<bool> cancelled{false};
    pymtp_counters    counters = {};

    // The reason why the pair cannot be used any more, or "" while it can. While there is a reason, pymtp_pair_call
    // refuses every call.
    std::string broken;

    pymtp_batch        batch;
    std::vector<float> logits;     // the logits of the last prefill
    std::vector<float> embeddings; // the embeddings of the last prefill, if options.embeddings is set

    pymtp_graph_slots target_slots;
    pymtp_graph_slots draft_slots;

    void make_threads();
    bool check_seq(int32_t seq) const;
    bool check_seqs(int32_t n_seqs, const int32_t * seqs) const;
    bool check_tokens(const llama_token * tokens, int32_t n) const;
    int  check_room(const pymtp_sequence & s, int32_t n) const;
    bool is_fused() const;
    bool can_batch() const { return is_fused() || !draft; } // returns whether several sequences may share a decode
    // returns the largest number of rows in a verification, of all sequences together
    int32_t max_verify_rows() const;
    void begin_prefill();
    void begin_round();
    int  decode(llama_context * ctx, uint32_t slot = 0);
    void clear(int32_t seq);
    void clear_after_failure(const int32_t * seqs, int32_t n) noexcept;
    void mark_broken(const char * why) noexcept;
    void report_broken() const noexcept;

    // prefill.cpp
    int  check_prompts(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths) const;
    int  prefill(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all);

    // head.cpp
    int  catch_up_head(int32_t n_seqs, const int32_t * seqs);
    int  flush_pending_hidden(int32_t n_seqs, const int32_t * seqs);
    int  prepare_save(int32_t seq);
    void truncate_head(int32_t seq);
    void zero_head_cells(int32_t seq);
    void discard_drafts(int32_t seq);

    // rounds.cpp
    int  check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const;
    int  check_verify(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const;
    int  draft_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
            float * confidences, pymtp_outcome * outcomes);
    int  draft_chains(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch & samples);
    int  verify(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
            pymtp_sample_batch * samples = nullptr);
    int  verify_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
            llama_token * sampled, pymtp_outcome * outcomes);
    void clear_if_failed(int32_t seq, const pymtp_outcome & outcome);
    int  rewind(int32_t seq, int32_t n_keep);

    // copy.cpp
    int  copy(int32_t from, int32_t to);
    int  move(int32_t from, int32_t to);

    // save.cpp
    bool check_range(const char * what, int32_t first, int32_t n, int32_t limit) const;
    bool check_staging(int32_t seq, int32_t first, int32_t n) const;
    size_t cell_bytes() const;
    size_t max_state_bytes() const;
    pymtp_cell_format cell_format() const;
    int  begin_save(int32_t seq, int32_t first, int32_t n);
    int  save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data);
    int  load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data);
    int  copy_cells(int32_t from, int32_t to, int32_t first, int32_t n);
    int  retain_cells(int32_t seq, int32_t n);
    int  begin_save_state(int32_t seq, bool with_logits, size_t * needed);
    int  save_state(int32_t seq, bool with_logits, uint8_t * data);
    int  check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size, bool * logits) const;
    int  load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size);

    // pair_draft_vocab.cpp
    void make_draft_vocab(const pymtp_model & model);
    void observe_text(const llama_token * text, size_t n);
    void observe_sampled(const llama_token * text, size_t n);
    void write_draft_rows();

    // pair_sampling.cpp
    int  set_sampling(int32_t seq, const pymtp_sampling & sampling);
    bool check_sampler(int32_t seq) const;
    bool check_samplers(int32_t n_seqs, const int32_t * seqs) const;
    int  decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples);
    int  sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence);
    int  first_token(int32_t seq, llama_token * token);
    pymtp_logits full_row(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }

    // memory.cpp
    void reserve();
};

// While an object of this class lives, the draft context reads the hidden states that are pending in the target
// context.
class pymtp_pending_hidden_scope {
public:
    explicit pymtp_pending_hidden_scope(pymtp_pair & pair);
    ~pymtp_pending_hidden_scope();

private:
    llama_context * draft;
};

// While an object of this class lives, drafts use the reduced output layer if `value` is true, otherwise the whole
// layer.
class pymtp_reduced_output_scope {
public:
    pymtp_reduced_output_scope(pymtp_pair & pair, bool value);
    ~pymtp_reduced_output_scope();

private:
    llama_context * draft;
};

// Makes a pair like pymtp_pair_init, but lets exceptions of llama.cpp through. If llama.cpp makes no context, sets the
// error message and returns null.
std::unique_ptr<pymtp_pair> pymtp_make_pair(
        const pymtp_model * shared, llama_context_params params, const pymtp_pair_options & options);
