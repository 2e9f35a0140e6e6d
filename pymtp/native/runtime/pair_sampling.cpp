// Samples tokens for the sequences of a pair: within graphs, or from the logits of a prompt.
#include "api_guard.h"
#include "pair.h"
#include "sample_job.h"
#include "stopwatch.h"

#include "pymtp_context.h"

#include <algorithm>

int pymtp_pair::set_sampling(int32_t seq, const pymtp_sampling & sampling) {
    const std::string error = pymtp_sampler::check(sampling, n_vocab);
    if (!error.empty()) {
        pymtp_set_error(error);
        return PYMTP_INVALID;
    }
    sequences[seq].sampler = std::make_unique<pymtp_sampler>(sampling, n_vocab);
    return PYMTP_OK;
}

bool pymtp_pair::check_sampler(int32_t seq) const {
    if (!sequences[seq].sampler) {
        pymtp_set_error("sequence " + std::to_string(seq) + " was not told how to sample tokens");
        return false;
    }
    return true;
}

bool pymtp_pair::check_samplers(int32_t n_seqs, const int32_t * seqs) const {
    return check_seqs(n_seqs, seqs) &&
            std::all_of(seqs, seqs + n_seqs, [this](int32_t seq) { return check_sampler(seq); });
}

// While an object of this class lives, the graphs of a context end with sampling. The destructor turns it off, also
// when llama.cpp throws an exception.
class pymtp_graph_sample_scope {
public:
    pymtp_graph_sample_scope(llama_context * ctx, const pymtp_graph_sample & params) : ctx(ctx) {
        pymtp_set_sample(ctx, params);
    }
    ~pymtp_graph_sample_scope() { pymtp_set_sample(ctx, {}); }

private:
    llama_context * ctx;
};

// Decodes the batch with a graph that also samples, and stores the samples in the jobs of `samples`. The graph is kept
// in a slot, because depths alternate from round to round.
int pymtp_pair::decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples) {
    const pymtp_graph_sample params = samples.graph_params();
    const pymtp_graph_sample_scope graph(ctx, params);
    pymtp_graph_slots & slots = ctx == target.get() ? target_slots : draft_slots;
    if (int status = decode(ctx, slots.slot_for({(int32_t) samples.jobs.size(), samples.n_rows}))) {
        llama_synchronize(ctx);
        return status;
    }
    if (params.kind == PYMTP_SAMPLE_ARGMAX) {
        samples.read_argmax(ctx);
    } else {
        llama_synchronize(ctx);
        counters.sample_seconds += samples.seconds(llama_n_threads(ctx));
    }
    return PYMTP_OK;
}

// Samples the token after the first n_prefix tokens of a sequence. Returns PYMTP_FAILED when a logit is not a number,
// and PYMTP_DEAD_END when the grammar allows no token.
// confidence: receives the head's probability of a draft; null unless the token is a draft
int pymtp_pair::sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token,
        float * confidence) {
    pymtp_sequence & s = sequences[seq];
    const auto sampled = s.sampler->sample(from, n_prefix, s.tokens.data(), n_prefix, confidence != nullptr);
    if (sampled.token == LLAMA_TOKEN_NULL) {
        return PYMTP_FAILED;
    }
    *token = sampled.token;
    if (confidence) {
        // A draft that the grammar does not allow is harmless, because the target will not sample that token.
        *confidence = sampled.confidence;
        return PYMTP_OK;
    }
    if (!sampled.allowed) {
        return PYMTP_DEAD_END;
    }
    // If log-probabilities are asked for, `from` is a whole row of logits.
    s.sampler->append_logprobs(from.values, sampled.token, s.logprobs);
    return PYMTP_OK;
}

// Returns the error message for a position at which no token could be sampled.
static std::string no_token_error(int status, size_t position) {
    return (status == PYMTP_DEAD_END ? "the grammar allows no token at position " : "no finite logits at position ") +
        std::to_string(position);
}

int pymtp_pair::first_token(int32_t seq, llama_token * token) {
    pymtp_sequence & s = sequences[seq];
    if (!s.first_logits) {
        pymtp_set_error("sequence " + std::to_string(seq) + " was not in the last prefill");
        return PYMTP_INVALID;
    }
    s.logprobs.clear();
    pymtp_stopwatch watch(counters.sample_seconds);
    s.sampler->begin(s.n_past);
    if (int status = sample(seq, full_row(s.first_logits), s.n_past, token, nullptr)) {
        pymtp_set_error(no_token_error(status, s.n_past));
        return status;
    }
    observe_text(s.tokens.data(), s.n_past); // all tokens, because prefill has not seen those of a reused prefix
    observe_sampled(token, 1);
    write_draft_rows(); // written now, so that the first round need not write the rows for the prompt's tokens
    return PYMTP_OK;
}

int pymtp_outcome_error(const pymtp_outcome * outcome) {
    pymtp_guarded([&] { pymtp_set_error(no_token_error(outcome->status, outcome->position)); });
    return outcome->status;
}

llama_token pymtp_sample(
        const pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence) {
    return pymtp_guarded<llama_token>(LLAMA_TOKEN_NULL, [&] {
        pymtp_require(n_vocab >= 1 && n >= 0, "a sample needs logits, and no less than zero tokens before it");
        const std::string error = pymtp_sampler::check(*sampling, n_vocab);
        pymtp_require(error.empty(), error.c_str());
        for (int32_t i = 0; i < n; ++i) {
            pymtp_require(prefix[i] >= 0 && prefix[i] < n_vocab, "a token before the sample is not in the vocabulary");
        }
        pymtp_sampler sampler(*sampling, n_vocab);
        sampler.begin(0);
        const auto sampled = sampler.sample({logits, nullptr, (size_t) n_vocab}, position, prefix, n, true);
        *confidence = sampled.confidence;
        return sampled.allowed ? sampled.token : (llama_token) LLAMA_TOKEN_NULL;
    });
}
