// Samples tokens within the graphs of a pair: configures how a graph samples, and collects the graph's samples.
#pragma once

#include "pymtp.h"
#include "sequence.h"

#include "pymtp_context.h"

#include <vector>

// Returns the largest number of candidates that the graphs of a model may pick from a row of logits, so that the row
// need not be copied to the host. 1: graphs can only find the most likely token. 0: the host samples from whole rows,
// for example because they are in its memory.
size_t pymtp_max_candidates(const llama_model & model, pymtp_sample_on sample_on);

// Returns the error message for a position at which no token could be sampled: PYMTP_DEAD_END or PYMTP_FAILED.
std::string pymtp_no_token_error(int status, size_t position);

// Samples the tokens of one sequence in a batch, row by row, until no further token is needed or can be sampled.
struct pymtp_sample_job {
    pymtp_sequence * sequence;
    size_t           n_prefix; // number of the sequence's tokens before the next sample
    // The tokens of the rows, for a verification: sampling ends when a sample differs from the token of the next row.
    // Null for drafts.
    const llama_token * row_tokens = nullptr;
    int32_t       n_rows;
    llama_token * sampled;
    float *       confidences = nullptr; // receives the confidence of each draft; null for a verification
    int32_t       n_sampled   = 0;
    bool          done        = false;
    double        seconds     = 0.0;
    int           status      = PYMTP_OK; // PYMTP_DEAD_END or PYMTP_FAILED if no token could be sampled from a row

    bool is_draft() const { return confidences != nullptr; }
    llama_token sample(const pymtp_logits & from);
    // records a token that the graph sampled by argmax, and its value
    void        add_argmax(llama_token token, float value);
    pymtp_outcome outcome() const { return {n_sampled, status, (int32_t) n_prefix}; }

private:
    llama_token add(llama_token token);
    llama_token fail(int reason);
};

// Samples the tokens of a batch, with one job for each sequence. All sequences have the same number of rows in the
// batch; rows beyond the n_rows of a job are padding. Callbacks run on threads of ggml, so they must not throw.
struct pymtp_sample_batch {
    // n_logits: number of logits in a row.
    // by_step: true if the rows are ordered by draft step, with one row of each sequence in a step; false if all rows
    // of a sequence come before those of the next sequence
    pymtp_sample_batch(int32_t n_rows, size_t n_logits, bool by_step) :
        n_rows(n_rows), n_logits(n_logits), by_step(by_step) {}

    const int32_t n_rows; // number of rows of each sequence, with padding

    std::vector<pymtp_sample_job> jobs;

    // Returns the sampling settings for the graph, which may pick at most max_candidates candidates from a row.
    pymtp_graph_sample graph_params(size_t max_candidates);
    void read_argmax(llama_context * ctx); // reads the tokens that the graph sampled by argmax

    // returns the estimated wall time of sampling, because several threads sample at the same time
    double seconds(int32_t n_threads) const;

private:
    const size_t n_logits;
    const bool   by_step;

    pymtp_sample_job & job_of(int32_t row) { return jobs[by_step ? row : row / n_rows]; }
    static llama_token on_sample(void * batch, int32_t row, const float * logits, const llama_token * ids, int32_t n);
};
