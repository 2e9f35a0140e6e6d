// Implements the C API of a pair.
#include "pair.h"
#include "sample_job.h"

#include "pymtp_context.h"

namespace {

// Runs a function that works on one sequence, see pymtp_pair::call. Returns PYMTP_INVALID if there is no such sequence.
template <typename F> int call(pymtp_pair * pair, int32_t seq, F && body) noexcept {
    return pair->call(&seq, 1, [&] {
        pair->contexts().check_seq(seq);
        body();
    });
}

const pymtp_sequence * sequence_of(pymtp_pair * pair, int32_t seq) {
    return pymtp_guarded<const pymtp_sequence *>(nullptr, [&] { return &pair->sequence(seq); });
}

} // namespace

pymtp_pair * pymtp_pair_init(
        const pymtp_model * model, llama_context_params params, const pymtp_pair_options * options) {
    return pymtp_guarded<pymtp_pair *>(nullptr, [&] { return new pymtp_pair(*model, params, *options); });
}

void pymtp_pair_free(pymtp_pair * pair) {
    delete pair;
}

int pymtp_pair_prefill(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        const pymtp_image_rows * images, int32_t n_images, bool all, const float ** logits) {
    *logits = nullptr;
    return pair->call(seqs, n_seqs, [&] {
        const pymtp_rows_of_images rows(pair->contexts().images, images, n_images);
        *logits = pair->prefill(n_seqs, seqs, tokens, lengths, rows, all);
    });
}

int pymtp_pair_add_image(pymtp_pair * pair, llama_token token, int32_t nx, int32_t ny) {
    return pair->call(nullptr, 0, [&] { pair->contexts().add_image(token, nx, ny); });
}

const float * pymtp_pair_embeddings(const pymtp_pair * pair) {
    return pair->embeddings();
}

int pymtp_pair_verify(pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits) {
    *logits = nullptr;
    return call(pair, seq, [&] {
        pair->verify(1, &seq, tokens, n);
        *logits = llama_get_logits(pair->contexts().target.get());
    });
}

int pymtp_pair_set_sampling(pymtp_pair * pair, int32_t seq, const pymtp_sampling * sampling) {
    return call(pair, seq, [&] {
        const int32_t n_vocab = pair->contexts().n_vocab;
        const std::string error = pymtp_sampler::check(*sampling, n_vocab);
        if (!error.empty()) {
            throw pymtp_failure(PYMTP_INVALID, error);
        }
        pair->sequence(seq).sampler = std::make_unique<pymtp_sampler>(*sampling, n_vocab);
    });
}

int pymtp_pair_first_token(pymtp_pair * pair, int32_t seq, llama_token * token) {
    return call(pair, seq, [&] { *token = pair->first_token(seq); });
}

int pymtp_pair_draft_tokens(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
        llama_token * drafts, float * confidences, pymtp_outcome * outcomes) {
    return pair->call(seqs, n_seqs,
            [&] { pair->draft_tokens(n_seqs, seqs, tokens, n, drafts, confidences, outcomes); });
}

int pymtp_pair_verify_tokens(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        llama_token * sampled, pymtp_outcome * outcomes) {
    return pair->call(seqs, n_seqs,
            [&] { pair->verify_tokens(n_seqs, seqs, tokens, lengths, sampled, outcomes); });
}

int pymtp_outcome_error(const pymtp_outcome * outcome) {
    pymtp_guarded([&] { pymtp_set_error(pymtp_no_token_error(outcome->status, outcome->position)); });
    return outcome->status;
}

int32_t pymtp_pair_draft_vocab_size(pymtp_pair * pair) {
    return pair->vocab().n_next();
}

bool pymtp_pair_in_draft_vocab(pymtp_pair * pair, llama_token token) {
    return pair->vocab().contains(token);
}

void pymtp_pair_reset_draft_vocab(pymtp_pair * pair) {
    pair->vocab().reset_usage();
}

int pymtp_pair_rewind(pymtp_pair * pair, int32_t seq, int32_t n_keep) {
    return call(pair, seq, [&] { pair->rewind(seq, n_keep); });
}

int pymtp_pair_copy(pymtp_pair * pair, int32_t from, int32_t to) {
    return call(pair, to, [&] { pair->store().copy(from, to); });
}

int pymtp_pair_move(pymtp_pair * pair, int32_t from, int32_t to) {
    return call(pair, to, [&] { pair->move(from, to); });
}

int pymtp_pair_clear(pymtp_pair * pair, int32_t seq) {
    return call(pair, seq, [&] { pair->store().clear(seq); });
}

int64_t pymtp_pair_cell_bytes(pymtp_pair * pair) {
    return pymtp_guarded<int64_t>(-1, [&] { return (int64_t) pair->store().cell_bytes(); });
}

int64_t pymtp_pair_state_bytes(pymtp_pair * pair) {
    return pymtp_guarded<int64_t>(-1, [&] { return (int64_t) pair->store().max_state_bytes(); });
}

int pymtp_pair_cell_format(pymtp_pair * pair, pymtp_cell_format * format) {
    return pair->call(nullptr, 0, [&] { *format = pair->store().cell_format(); });
}

// Saves in a second call for no sequences: a failure while saving leaves the sequence intact, so it must not be
// cleared.
int pymtp_pair_save_cells(pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data) {
    if (int status = call(pair, seq, [&] { pair->store().prepare_cells(seq, first, n); })) {
        return status;
    }
    return pair->call(nullptr, 0, [&] { pair->store().save_cells(seq, first, n, data); });
}

int pymtp_pair_load_cells(pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, const uint8_t * data) {
    return call(pair, seq, [&] { pair->store().load_cells(seq, first, n, data); });
}

int pymtp_pair_copy_cells(pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n) {
    if (int status = call(pair, from, [&] { pair->store().prepare_cells(from, first, n); })) {
        return status;
    }
    return call(pair, to, [&] { pair->store().copy_cells(from, to, first, n); });
}

int pymtp_pair_retain_cells(pymtp_pair * pair, int32_t seq, int32_t n) {
    return call(pair, seq, [&] { pair->store().retain_cells(seq, n); });
}

int pymtp_pair_save_state(pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size, size_t * needed) {
    *needed = 0;
    if (int status = call(pair, seq, [&] { *needed = pair->store().prepare_state(seq, logits); })) {
        return status;
    }
    return pair->call(nullptr, 0, [&] {
        if (size >= *needed) {
            pair->store().save_state(seq, logits, data);
        }
    });
}

int pymtp_pair_check_state(
        pymtp_pair * pair, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size, bool * logits) {
    *logits = false;
    return pair->call(nullptr, 0, [&] { *logits = pair->store().check_state(tokens, n, data, size); });
}

int pymtp_pair_load_state(
        pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) {
    return call(pair, seq, [&] { pair->store().load_state(seq, tokens, n, data, size); });
}

int32_t pymtp_pair_logprobs(pymtp_pair * pair, int32_t seq, const pymtp_logprob ** logprobs) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    *logprobs = s ? s->logprobs.data() : nullptr;
    return s ? s->logprobs.size() : 0;
}

int32_t pymtp_pair_n_past(pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->n_past() : -1;
}

const llama_token * pymtp_pair_tokens(pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->tokens().data() : nullptr;
}

int32_t pymtp_pair_n_head(pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->n_head() : -1;
}

int32_t pymtp_pair_n_ctx(pymtp_pair * pair) {
    return pair->contexts().n_ctx;
}

void pymtp_pair_cancel(pymtp_pair * pair, bool cancelled) {
    pair->contexts().cancelled = cancelled;
}

void pymtp_pair_counters(pymtp_pair * pair, pymtp_counters * counters) {
    *counters = pair->contexts().counters;
    pymtp_guarded([&] {
        for (llama_context * ctx : {pair->contexts().target.get(), pair->contexts().draft.get()}) {
            if (ctx) {
                counters->graphs_reused += llama_perf_context(ctx).n_reused;
                const pymtp_output_bytes bytes = pymtp_get_output_bytes(ctx);
                counters->hidden_bytes     += bytes.hidden;
                counters->logits_bytes     += bytes.logits;
                counters->embeddings_bytes += bytes.embeddings;
                counters->draw_bytes       += bytes.samples;
                counters->output_buffer_bytes += bytes.buffer;
            }
        }
    });
}
