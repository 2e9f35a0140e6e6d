// A target and a draft context of one model, and how far each of their sequences has come. pair.cpp makes them,
// prefill.cpp takes prompts, rounds.cpp drafts and verifies, sample_job.cpp draws tokens, memory.cpp says what they take.
#pragma once

#include "sampler.h"
#include "model.h"
#include "pymtp.h"

#include "llama.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

struct pymtp_context_deleter {
    void operator()(llama_context * ctx) const { llama_free(ctx); }
};
using pymtp_context_ptr = std::unique_ptr<llama_context, pymtp_context_deleter>;

class pymtp_stopwatch {
public:
    explicit pymtp_stopwatch(double & total) : total(total), start(std::chrono::steady_clock::now()) {}
    ~pymtp_stopwatch() { total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

private:
    double & total;
    std::chrono::steady_clock::time_point start;
};

struct pymtp_sequence {
    int32_t n_past   = 0; // tokens that the target holds
    int32_t n_rewind = 0; // how many of them can be taken back: drafts just verified
    int32_t n_head   = 0; // rows that the head holds, made from the target's hidden states: while these are kept on the device,
                          // it may be behind
    int32_t n_chain  = 0; // draft steps since
    llama_token drafted_from = LLAMA_TOKEN_NULL; // the token of row n_head-1, when the target does not hold it yet

    // How the next rows of the head get their hidden states. On the device, where the target's graph left the one that
    // the next token goes with; or through the host, for which are kept:

    // tokens n_head .. n_past-1, which the head has yet to take, and the hidden states n_head-1 .. n_past-1: one more,
    // for the token to come (none of both while drafted_from is set)
    std::vector<llama_token> unsynced;
    std::vector<float>       hidden;
    bool on_device = false;

    std::shared_ptr<pymtp_sampler> sampler; // null until told how to sample
    std::vector<llama_token>      tokens; // the n_past that the target holds, and what is drafted after them
    const float *                 first_logits = nullptr; // of the last prefill

    std::vector<float> recycled;     // the head's own hidden state of the last draft step
    std::vector<float> shifted;      // for PYMTP_FAULT_SHIFTED_ROWS: the last row taken, then the rows before the next
    std::vector<float> drafted_with; // the target's hidden state that drafted_from went with
};

// Tokens of one or more sequences for one call of llama_decode.
class pymtp_batch {
public:
    void clear();
    void add(llama_token token, int32_t pos, llama_seq_id seq, bool output);
    void set_rows(const float * rows) { embd = rows; }
    int32_t size() const { return tokens.size(); }
    std::string describe() const;
    llama_batch view();

private:
    std::vector<llama_token>    tokens;
    std::vector<llama_pos>      positions;
    std::vector<int32_t>        n_seq_ids;
    std::vector<llama_seq_id>   seqs;
    std::vector<llama_seq_id *> seq_ids;
    std::vector<int8_t>         outputs;
    const float *               embd = nullptr;
};

// tokens that the head may be behind, see llama_set_nextn_sync
constexpr int32_t PYMTP_MOST_KEPT = 63;

struct pymtp_sample_job;

struct pymtp_pair {
    std::shared_ptr<llama_model> model; // first, so that it goes last

    pymtp_context_ptr target;
    pymtp_context_ptr draft; // null without drafts

    pymtp_pair_options options = {};

    int32_t n_vocab     = 0;
    int32_t n_embd      = 0;
    int32_t n_ctx       = 0; // of one sequence
    int32_t n_batch     = 0;
    int32_t n_outputs   = 0; // most rows of logits a batch
    int32_t n_head_rows = 0; // most rows that the draft context takes at once

    size_t most_candidates = 0; // that graphs hand to draws in place of a row of logits, see pymtp_most_candidates

    std::vector<pymtp_sequence> sequences;

    pymtp_fault       fault = PYMTP_FAULT_NONE;
    std::string       broken; // why the pair can be used no more; "" while it can
    std::atomic<bool> cancelled{false};
    pymtp_counters    counters = {};

    pymtp_batch        batch;
    std::vector<float> logits;     // of the last prefill
    std::vector<float> embeddings; // likewise, where asked for

    std::vector<pymtp_logprob> logprobs; // of the last tokens that the target drew, where asked for

    std::string trace;        // the nodes computed, see pymtp_pair_trace
    std::string trace_target; // who is computing
    std::string trace_text;   // what the last call returned

    bool check_seq(int32_t seq) const;
    bool check_sampler(int32_t seq) const;
    int  check_room(const pymtp_sequence & s, int32_t n) const;
    int  decode(llama_context * ctx, uint32_t slot = 0);
    void break_on_purpose() const;
    bool fuses() const;
    void begin_prefill();
    void begin_round();
    void clear();
    void clear(int32_t seq);

    // prefill.cpp
    int  prefill(int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all);
    int  settle(int32_t seq);
    int  take_rows(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset);

    // memory.cpp
    void reserve();

    // rounds.cpp
    const float * rows_for(pymtp_sequence & s, int32_t n);
    int  sync(int32_t seq, int32_t n, const float * rows);
    int  take_kept(int32_t seq);
    int  fetch_hidden(int32_t seq);
    void drop_drafts(int32_t seq);
    void take_back_draft(int32_t seq);
    int  check_draft(const pymtp_sequence & s, int32_t n) const;
    int  draft_step(int32_t seq, llama_token token);
    int  draft_tokens(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences);
    int  draft_chain(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences);
    int  verify(int32_t seq, const llama_token * tokens, int32_t n, pymtp_sample_job * job = nullptr);
    int  verify_tokens(int32_t seq, const llama_token * tokens, int32_t n, llama_token * sampled, int32_t * n_sampled);
    int  rewind(int32_t seq, int32_t n_keep);

    // sample_job.cpp
    pymtp_logits row(const float * logits) const { return {logits, nullptr, (size_t) n_vocab}; }
    int  decode_and_sample(llama_context * ctx, pymtp_sample_job & job);
    int  sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence);
    int  first_token(int32_t seq, llama_token * token);
    int  sampled(int32_t seq, int status, size_t position);
};

// As pymtp_pair_init, but throws what llama.cpp throws; null, with the error set, where it makes no context.
std::unique_ptr<pymtp_pair> pymtp_make_pair(
        const pymtp_model * shared, llama_context_params params, const pymtp_pair_options & options);
