// Samples within the graphs of a pair: what a graph is told to sample from, and what comes of it.
#pragma once

#include "sampler.h"
#include "pymtp.h"

#include "pymtp_context.h"

#include <vector>

// How many candidates the graphs of a model may pick, so that no row of logits comes to the host: 1 where they can only
// tell the likeliest, 0 where the host is to look at rows, for it has them.
size_t pymtp_most_candidates(const llama_model & model, pymtp_draws draws);

// The samples of one sequence in a batch: from a row of logits after the other, up to the first that gives no token.
struct pymtp_sample_job {
    pymtp_pair * pair;
    int32_t      seq;
    size_t       n_prefix;              // tokens of the sequence before the one to be sampled
    const llama_token * next = nullptr; // the tokens of the rows, where sampling ends at the first that is not the next row's
    int32_t       n_rows;
    llama_token * sampled;
    float *       confidences = nullptr; // of drafts
    int32_t       n_sampled = 0;
    bool          ended   = false;
    double        seconds = 0.0;
    int           status  = PYMTP_OK; // why it ended without a token: PYMTP_DEAD_END or PYMTP_FAILED

    size_t      enough() const; // candidates, for each row
    llama_token sample(const pymtp_logits & from);
    void        take(llama_token token, float value); // what a graph sampled without the host
    pymtp_outcome outcome() const { return {n_sampled, status, (int32_t) n_prefix}; }

private:
    llama_token add(llama_token token);
    llama_token fail(int why);
};

// The samples of a batch: those of each sequence, which have as many rows each. Rows past those of a job are padding.
// Callbacks come on a thread of ggml, so that nothing may be thrown.
struct pymtp_sample_batch {
    // by_step: the rows are, step by step, one of each sequence; else all of a sequence, then of the next
    pymtp_sample_batch(int32_t n_rows, bool by_step) : n_rows(n_rows), by_step(by_step) {}

    const int32_t n_rows; // of each sequence

    std::vector<pymtp_sample_job> jobs;

    pymtp_graph_sample params(); // for the graph
    void read(llama_context * ctx); // what a graph sampled without the host

    // wall time, for threads share the sequences
    double seconds(int32_t n_threads) const;

private:
    const bool by_step;

    pymtp_sample_job & job_of(int32_t row) { return jobs[by_step ? row : row / n_rows]; }
    static llama_token on_sample(void * batch, int32_t row, const float * logits, const llama_token * ids, int32_t n);
};
