// A target and a draft context of one model, and how far each of their sequences has come.
//
// pair.cpp makes them, prefill.cpp takes prompts, rounds.cpp drafts, verifies and rewinds, head.cpp keeps the head level
// with the target, copy.cpp copies and moves sequences, save.cpp takes what they hold to the host's memory and back,
// sampling.cpp says how tokens are sampled, draft_rows.cpp over which of them drafts are made, memory.cpp what all of it takes.
// pair_api.cpp is what C calls.
// compare/ holds what serves comparisons and tests only.
#pragma once

#include "batch.h"
#include "compare/host_rows.h"
#include "compare/pymtp_compare.h"
#include "compare/trace.h"
#include "draft_vocab.h"
#include "file_rows.h"
#include "graph_slots.h"
#include "host.h"
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

// bytes that llama.cpp notes of each cell of a context (llama_kv_cells), apart from K and V
extern const int64_t pymtp_notes_of_cell;

constexpr int32_t PYMTP_MOST_DRAFTS = 64; // a round
constexpr int32_t PYMTP_MOST_KEPT   = 63; // tokens that the head may be behind, see pymtp_set_sync

struct pymtp_sample_batch;
struct pymtp_sample_job;

struct pymtp_pair {
    std::shared_ptr<llama_model> model; // first, so that it goes last

    std::unique_ptr<pymtp_trace>     trace;    // null unless asked for
    std::unique_ptr<pymtp::op_times> op_times; // likewise

    // What a graph's threads share, of both contexts: without one, each graph would make one and free it. The threads themselves
    // are the process's (kernels/threads/team.h).
    std::unique_ptr<ggml_threadpool, pymtp_threads_deleter> threads;

    pymtp_context_ptr target;
    pymtp_context_ptr draft; // null without drafts

    pymtp_pair_options options = {};

    int32_t n_vocab     = 0;
    int32_t n_embd      = 0;
    int32_t n_ctx       = 0; // of one sequence
    int32_t n_batch     = 0;
    int32_t n_outputs   = 0; // most rows of logits a batch
    int32_t n_head_rows = 0; // most rows that the draft context takes at once

    // drafts over part of the vocabulary; null for all of it
    std::unique_ptr<pymtp_draft_vocab>     vocabulary;
    std::shared_ptr<const pymtp_file_rows> file_rows;
    pymtp_draft_vocab::rows                unwritten = pymtp_draft_vocab::rows::none; // rows that have other tokens by now
    bool drafts_over_rows = false; // the last chain was made over it

    size_t most_candidates = 0; // that graphs leave to sample from in place of a row of logits, see pymtp_most_candidates

    std::vector<pymtp_sequence>      sequences;
    std::unique_ptr<pymtp_host_rows> host; // null without drafts

    pymtp_fault       fault = PYMTP_FAULT_NONE;
    std::atomic<bool> cancelled{false};
    pymtp_counters    counters = {};

    // Why the pair can be used no more, "" while it can: every call is refused from then on, see pymtp_pair_call.
    std::string broken;

    pymtp_batch        batch;
    std::vector<float> logits;     // of the last prefill
    std::vector<float> embeddings; // likewise, where asked for

    pymtp_graph_slots target_slots;
    pymtp_graph_slots draft_slots;

    void make_threads();
    bool check_seq(int32_t seq) const;
    bool check_seqs(int32_t n_seqs, const int32_t * seqs) const;
    bool check_tokens(const llama_token * tokens, int32_t n) const;
    int  check_room(const pymtp_sequence & s, int32_t n) const;
    bool fuses() const;
    bool together() const { return fuses() || !draft; } // several sequences may share a launch
    int32_t most_rows() const;                          // of a verification, of all sequences
    void begin_prefill();
    void begin_round();
    int  decode(llama_context * ctx, uint32_t slot = 0);
    void clear(int32_t seq);
    void empty_after_failure(const int32_t * seqs, int32_t n) noexcept;
    void break_for_good(const char * why) noexcept;
    void say_broken() const noexcept;

    // prefill.cpp
    int  check_prompts(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths) const;
    int  prefill(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all);

    // head.cpp
    int  settle(int32_t n_seqs, const int32_t * seqs);
    int  take_kept(int32_t n_seqs, const int32_t * seqs);
    int  level(int32_t seq);
    void drop_drafts(int32_t seq);
    void wipe_head(int32_t seq);
    void take_back_draft(int32_t seq);

    // rounds.cpp
    int  check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const;
    int  check_verify(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const;
    int  draft_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
            float * confidences, pymtp_outcome * outcomes);
    int  draft_chains(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch & samples);
    int  verify(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch * samples = nullptr);
    int  verify_tokens(
            int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, llama_token * sampled,
            pymtp_outcome * outcomes);
    void finish(int32_t seq, const pymtp_outcome & outcome);
    int  rewind(int32_t seq, int32_t n_keep);

    // copy.cpp
    int  copy(int32_t from, int32_t to);
    int  move(int32_t from, int32_t to);

    // save.cpp
    bool check_range(const char * what, int32_t first, int32_t n, int32_t most) const;
    bool check_stage(int32_t seq, int32_t first, int32_t n) const;
    size_t cell_bytes() const;
    size_t most_state_bytes() const;
    pymtp_cell_options cell_options() const;
    int  begin_save(int32_t seq, int32_t first, int32_t n);
    int  save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data);
    int  load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data);
    int  copy_cells(int32_t from, int32_t to, int32_t first, int32_t n);
    int  keep_cells(int32_t seq, int32_t n);
    int  begin_save_state(int32_t seq, bool with_logits, size_t * needed);
    int  save_state(int32_t seq, bool with_logits, uint8_t * data);
    int  check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size, bool * logits) const;
    int  load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size);

    // draft_rows.cpp
    void make_draft_vocab(const pymtp_model & model);
    void see(const llama_token * text, size_t n);
    void see_chosen(const llama_token * text, size_t n);
    void write_draft_rows();

    // sampling.cpp
    int  set_sampling(int32_t seq, const pymtp_sampling & sampling);
    bool check_sampler(int32_t seq) const;
    bool check_samplers(int32_t n_seqs, const int32_t * seqs) const;
    int  decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples);
    int  sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence);
    int  first_token(int32_t seq, llama_token * token);
    pymtp_logits row(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }

    // memory.cpp
    void reserve();
};

// While it lives, batches of the draft context go with the hidden rows that the target keeps.
class pymtp_kept_rows {
public:
    explicit pymtp_kept_rows(pymtp_pair & pair);
    ~pymtp_kept_rows();

private:
    llama_context * draft;
};

// While it lives, drafts are made over the draft vocabulary, unless value says that they are made over all tokens.
class pymtp_draft_rows {
public:
    pymtp_draft_rows(pymtp_pair & pair, bool value);
    ~pymtp_draft_rows();

private:
    llama_context * draft;
};

// As pymtp_pair_init, but throws what llama.cpp throws; null, with the error set, where it makes no context.
std::unique_ptr<pymtp_pair> pymtp_make_pair(
        const pymtp_model * shared, llama_context_params params, const pymtp_pair_options & options);
