// Samples within the graphs of a pair: what a graph is told to sample from, and what comes of it.
#pragma once

#include "sampler.h"
#include "pymtp.h"

#include "pymtp_context.h"

// How many candidates the graphs of a model may pick, so that no row of logits comes to the host: 1 where they can only
// tell the likeliest, 0 where the host is to look at rows, for it has them.
size_t pymtp_most_candidates(const llama_model & model, pymtp_draws draws);

// The samples of one batch: from a row of logits after the other, up to the first that gives no token. Callbacks come on a
// thread of ggml, so that nothing may be thrown.
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
    int           status  = PYMTP_OK; // why it ended without a token: PYMTP_DEAD_END or PYMTP_FAILED

    pymtp_graph_sample params();                  // for the graph
    llama_token       sample(const pymtp_logits & from);
    void              read(llama_context * ctx); // what a graph sampled without the host

private:
    llama_token add(llama_token token);
    llama_token fail(int why);
};
