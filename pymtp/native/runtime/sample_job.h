// Samples tokens within the graphs of a pair: tells a graph how to sample, and collects its samples.
#pragma once

#include "sampler.h"
#include "pymtp.h"

#include "pymtp_context.h"

#include <vector>

// Returns how many candidates the graphs of a model may pick, so that no row of logits is copied to the host: 1 when
// they can only find the most likely token, 0 when the host shall read rows because they are in its memory.
size_t pymtp_max_candidates(const llama_model & model, pymtp_sample_on sample_on);

// The samples of one sequence in a batch, row by row, until a row gives no token.
struct pymtp_sample_job {
    pymtp_pair * pair;
    int32_t      seq;
    size_t       n_prefix; // the sequence's tokens before the next sample
    // the rows' tokens; sampling ends when a sample differs from the next row's. Null for drafts
    const llama_token * row_tokens = nullptr;
    int32_t       n_rows;
    llama_token * sampled;
    float *       confidences = nullptr; // null except for drafts
    int32_t       n_sampled   = 0;
    bool          done        = false;
    double        seconds     = 0.0;
    int           status      = PYMTP_OK; // why sampling ended without a token: PYMTP_DEAD_END or PYMTP_FAILED

    size_t      n_candidates_needed() const; // candidates that each row needs, 0 for the whole row
    llama_token sample(const pymtp_logits & from);
    void        add_argmax(llama_token token, float value); // adds a token that the graph sampled by argmax
    pymtp_outcome outcome() const { return {n_sampled, status, (int32_t) n_prefix}; }

private:
    llama_token add(llama_token token);
    llama_token fail(int reason);
};

// The samples of a batch: a job for each sequence, with the same number of rows. Rows beyond those of a job are
// padding. Callbacks run on threads of ggml, so they must not throw.
struct pymtp_sample_batch {
    // by_step: the rows are in the order of steps, one of each sequence; otherwise all rows of a sequence come before
    // the next
    pymtp_sample_batch(int32_t n_rows, bool by_step) : n_rows(n_rows), by_step(by_step) {}

    const int32_t n_rows; // of each sequence

    std::vector<pymtp_sample_job> jobs;

    pymtp_graph_sample graph_params(); // the settings for the graph
    void read_argmax(llama_context * ctx); // reads the tokens that the graph sampled by argmax

    // estimates the wall time, because threads share the sequences
    double seconds(int32_t n_threads) const;

private:
    const bool by_step;

    pymtp_sample_job & job_of(int32_t row) { return jobs[by_step ? row : row / n_rows]; }
    static llama_token on_sample(void * batch, int32_t row, const float * logits, const llama_token * ids, int32_t n);
};
