// How the tokens of a pair's sequences are sampled: in graphs, or from the rows of a prompt.
#include "border.h"
#include "pair.h"
#include "sample_job.h"
#include "stopwatch.h"

#include "pymtp_context.h"

#include <algorithm>

int pymtp_pair::set_sampling(int32_t seq, const pymtp_sampling & sampling) {
    const std::string wrong = pymtp_sampler::refuse(sampling, n_vocab);
    if (!wrong.empty()) {
        pymtp_set_error(wrong);
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
    return check_seqs(n_seqs, seqs) && std::all_of(seqs, seqs + n_seqs, [this](int32_t seq) { return check_sampler(seq); });
}

// While it lives, graphs end with samples for a job; llama.cpp may throw.
class pymtp_sampling_graph {
public:
    pymtp_sampling_graph(llama_context * ctx, const pymtp_graph_sample & params) : ctx(ctx) { pymtp_set_sample(ctx, params); }
    ~pymtp_sampling_graph() { pymtp_set_sample(ctx, {}); }

private:
    llama_context * ctx;
};

// Runs the batch with the samples in its graph, which is kept: depths come by turns. The jobs say what came of the samples.
int pymtp_pair::decode_and_sample(llama_context * ctx, pymtp_sample_batch & samples) {
    const pymtp_graph_sample params = samples.params();
    const pymtp_sampling_graph graph(ctx, params);
    pymtp_graph_slots & kept = ctx == target.get() ? target_slots : draft_slots;
    if (int status = decode(ctx, kept.of({(int32_t) samples.jobs.size(), samples.n_rows}))) {
        llama_synchronize(ctx);
        return status;
    }
    if (params.kind == PYMTP_SAMPLE_ARGMAX) {
        samples.read(ctx);
    } else {
        llama_synchronize(ctx);
        counters.sample_seconds += samples.seconds(llama_n_threads(ctx));
    }
    return PYMTP_OK;
}

// The token after the first n_prefix of the sequence's. Drafts have a confidence. PYMTP_FAILED when a logit is not a number,
// PYMTP_DEAD_END when the grammar allows no token.
int pymtp_pair::sample(int32_t seq, const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence) {
    pymtp_sequence & s = sequences[seq];
    const auto sampled = s.sampler->sample(from, n_prefix, s.tokens.data(), n_prefix, confidence != nullptr);
    if (sampled.token == LLAMA_TOKEN_NULL) {
        return PYMTP_FAILED;
    }
    *token = sampled.token;
    if (confidence) {
        *confidence = sampled.confidence; // whatever the draft: where the grammar allows none, the target will not sample it
        return PYMTP_OK;
    }
    if (!sampled.allowed) {
        return PYMTP_DEAD_END;
    }
    s.sampler->report(from.values, sampled.token, s.logprobs); // where it is asked for, these are a row's
    return PYMTP_OK;
}

// Why there is no token at a position.
static std::string pymtp_unsampled(int status, size_t position) {
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
    if (int status = sample(seq, row(s.first_logits), s.n_past, token, nullptr)) {
        pymtp_set_error(pymtp_unsampled(status, s.n_past));
        return status;
    }
    see(s.tokens.data(), s.n_past); // what was not read again, too
    see_chosen(token, 1);
    write_draft_rows(); // with the prompt's tokens, so that the first round does not have to
    return PYMTP_OK;
}

int pymtp_outcome_error(const pymtp_outcome * outcome) {
    pymtp_guarded([&] { pymtp_set_error(pymtp_unsampled(outcome->status, outcome->position)); });
    return outcome->status;
}

llama_token pymtp_sample(
        const pymtp_sampling * sampling, const float * logits, int32_t n_vocab, int64_t position,
        const llama_token * prefix, int32_t n, float * confidence) {
    return pymtp_guarded<llama_token>(LLAMA_TOKEN_NULL, [&] {
        pymtp_require(n_vocab >= 1 && n >= 0, "a sample needs logits, and no less than zero tokens before it");
        const std::string wrong = pymtp_sampler::refuse(*sampling, n_vocab);
        pymtp_require(wrong.empty(), wrong.c_str());
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
