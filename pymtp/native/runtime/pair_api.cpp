// Implements the C API of a pair.
#include "pair_call.h"

#include "pymtp_context.h"

pymtp_pair * pymtp_pair_init(
        const pymtp_model * shared, llama_context_params params, const pymtp_pair_options * options) {
    return pymtp_guarded<pymtp_pair *>(nullptr, [&] { return pymtp_make_pair(shared, params, *options).release(); });
}

void pymtp_pair_free(pymtp_pair * pair) {
    delete pair;
}

int pymtp_pair_prefill(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        bool all, const float ** logits) {
    *logits = nullptr;
    return pymtp_pair_call(pair, seqs, n_seqs, [&] {
        const int status = pair->prefill(n_seqs, seqs, tokens, lengths, all);
        *logits = status ? nullptr : pair->logits.data();
        return status;
    });
}

const float * pymtp_pair_embeddings(const pymtp_pair * pair) {
    return pair->embeddings.data();
}

int pymtp_pair_verify(pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const float ** logits) {
    *logits = nullptr;
    return pymtp_pair_call(pair, seq, [&] {
        const int status = pair->verify(1, &seq, tokens, n);
        *logits = status ? nullptr : llama_get_logits(pair->target.get());
        return status;
    });
}

int pymtp_pair_set_sampling(pymtp_pair * pair, int32_t seq, const pymtp_sampling * sampling) {
    return pymtp_pair_call(pair, seq, [&] { return pair->set_sampling(seq, *sampling); });
}

int pymtp_pair_first_token(pymtp_pair * pair, int32_t seq, llama_token * token) {
    return pymtp_pair_call(pair, seq, [&] {
        return pair->check_sampler(seq) ? pair->first_token(seq, token) : (int) PYMTP_INVALID;
    });
}

int pymtp_pair_draft_tokens(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n,
        llama_token * drafts, float * confidences, pymtp_outcome * outcomes) {
    return pymtp_pair_call(pair, seqs, n_seqs, [&] {
        return pair->check_samplers(n_seqs, seqs)
            ? pair->draft_tokens(n_seqs, seqs, tokens, n, drafts, confidences, outcomes)
            : (int) PYMTP_INVALID;
    });
}

int pymtp_pair_verify_tokens(
        pymtp_pair * pair, int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        llama_token * sampled, pymtp_outcome * outcomes) {
    return pymtp_pair_call(pair, seqs, n_seqs, [&] {
        return pair->check_samplers(n_seqs, seqs)
            ? pair->verify_tokens(n_seqs, seqs, tokens, lengths, sampled, outcomes)
            : (int) PYMTP_INVALID;
    });
}

int32_t pymtp_pair_draft_vocab_size(const pymtp_pair * pair) {
    return pair->draft_vocab && pair->draft_vocab->is_worthwhile() ? pair->draft_vocab->tokens().size() : pair->n_vocab;
}

bool pymtp_pair_in_draft_vocab(const pymtp_pair * pair, llama_token token) {
    return !pair->drafts_reduced || (token >= 0 && token < pair->n_vocab && pair->draft_vocab->contains(token));
}

void pymtp_pair_reset_draft_vocab(pymtp_pair * pair) {
    if (pair->draft_vocab) {
        pair->draft_vocab->reset_usage();
    }
}

int pymtp_pair_rewind(pymtp_pair * pair, int32_t seq, int32_t n_keep) {
    return pymtp_pair_call(pair, seq, [&] { return pair->rewind(seq, n_keep); });
}

int pymtp_pair_copy(pymtp_pair * pair, int32_t from, int32_t to) {
    return pymtp_pair_call(pair, to, [&] { return pair->copy(from, to); });
}

int pymtp_pair_move(pymtp_pair * pair, int32_t from, int32_t to) {
    return pymtp_pair_call(pair, to, [&] { return pair->move(from, to); });
}

int64_t pymtp_pair_cell_bytes(const pymtp_pair * pair) {
    return pymtp_guarded<int64_t>(-1, [&] { return (int64_t) pair->cell_bytes(); });
}

int64_t pymtp_pair_state_bytes(const pymtp_pair * pair) {
    return pymtp_guarded<int64_t>(-1, [&] { return (int64_t) pair->max_state_bytes(); });
}

int pymtp_pair_cell_format(const pymtp_pair * pair, pymtp_cell_format * options) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        *options = pair->cell_format();
        return (int) PYMTP_OK;
    });
}

// Reads the cells in a second pymtp_pair_call for no sequences: a failure while reading leaves the sequence intact, so
// it must not be cleared.
int pymtp_pair_save_cells(pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, uint8_t * data) {
    if (int status = pymtp_pair_call(pair, seq, [&] { return pair->begin_save(seq, first, n); })) {
        return status;
    }
    return pymtp_pair_call(pair, nullptr, 0, [&] { return pair->save_cells(seq, first, n, data); });
}

int pymtp_pair_load_cells(pymtp_pair * pair, int32_t seq, int32_t first, int32_t n, const uint8_t * data) {
    return pymtp_pair_call(pair, seq, [&] { return pair->load_cells(seq, first, n, data); });
}

int pymtp_pair_copy_cells(pymtp_pair * pair, int32_t from, int32_t to, int32_t first, int32_t n) {
    if (int status = pymtp_pair_call(pair, from, [&] { return pair->begin_save(from, first, n); })) {
        return status;
    }
    return pymtp_pair_call(pair, to, [&] { return pair->copy_cells(from, to, first, n); });
}

int pymtp_pair_retain_cells(pymtp_pair * pair, int32_t seq, int32_t n) {
    return pymtp_pair_call(pair, seq, [&] { return pair->retain_cells(seq, n); });
}

int pymtp_pair_save_state(pymtp_pair * pair, int32_t seq, bool logits, uint8_t * data, size_t size, size_t * needed) {
    *needed = 0;
    if (int status = pymtp_pair_call(pair, seq, [&] { return pair->begin_save_state(seq, logits, needed); })) {
        return status;
    }
    return pymtp_pair_call(pair, nullptr, 0, [&] {
        return size >= *needed ? pair->save_state(seq, logits, data) : (int) PYMTP_OK;
    });
}

int pymtp_pair_check_state(
        const pymtp_pair * pair, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size,
        bool * logits) {
    *logits = false;
    return pymtp_guarded<int>(PYMTP_FAILED, [&] { return pair->check_state(tokens, n, data, size, logits); });
}

int pymtp_pair_load_state(
        pymtp_pair * pair, int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) {
    return pymtp_pair_call(pair, seq, [&] { return pair->load_state(seq, tokens, n, data, size); });
}

int pymtp_pair_clear(pymtp_pair * pair, int32_t seq) {
    return pymtp_pair_call(pair, seq, [&] {
        pair->clear(seq);
        return (int) PYMTP_OK;
    });
}

static const pymtp_sequence * sequence_of(const pymtp_pair * pair, int32_t seq) {
    return pymtp_guarded<const pymtp_sequence *>(nullptr,
            [&] { return pair->check_seq(seq) ? &pair->sequences[seq] : nullptr; });
}

int32_t pymtp_pair_logprobs(const pymtp_pair * pair, int32_t seq, const pymtp_logprob ** logprobs) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    *logprobs = s ? s->logprobs.data() : nullptr;
    return s ? s->logprobs.size() : 0;
}

int32_t pymtp_pair_n_past(const pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->n_past : -1;
}

const llama_token * pymtp_pair_tokens(const pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->tokens.data() : nullptr;
}

int32_t pymtp_pair_n_head(const pymtp_pair * pair, int32_t seq) {
    const pymtp_sequence * s = sequence_of(pair, seq);
    return s ? s->n_head : -1;
}

int32_t pymtp_pair_n_ctx(const pymtp_pair * pair) {
    return pair->n_ctx;
}

void pymtp_pair_cancel(pymtp_pair * pair, bool cancelled) {
    pair->cancelled = cancelled;
}

void pymtp_pair_counters(const pymtp_pair * pair, pymtp_counters * counters) {
    *counters = pair->counters;
    counters->hidden_bytes = counters->logits_bytes = counters->embeddings_bytes = counters->draw_bytes =
            counters->output_buffer_bytes = 0;
    counters->graphs_reused = 0;
    pymtp_guarded([&] {
        for (llama_context * ctx : {pair->target.get(), pair->draft.get()}) {
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
