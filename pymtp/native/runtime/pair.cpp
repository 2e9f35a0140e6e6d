// Makes pairs, and implements the parts of a round: drafting, verifying and rewinding.
//
// In the fused mode a round takes two decodes. The graph of the draft context computes the whole chain of drafts. The
// graph of the target verifies the drafts, and fills the head's cache for all rows, as for a prompt; rejected tokens
// are then rewound in both caches. Hidden states stay on the device, and neither graph depends on the number of
// accepted drafts. While nothing is drafted, the target's graph only stores the hidden states, and the head processes
// up to 63 tokens together before the next draft.
#include "pair.h"

#include "compare/faults.h"
#include "sample_job.h"
#include "stopwatch.h"

#include "pymtp_context.h"

#include <algorithm>

pymtp_pair::pymtp_pair(
        const pymtp_model & model, llama_context_params params, const pymtp_pair_options & options) :
    ctxs(model, params, options), sequences(options.n_seq_max), head_sync(ctxs, sequences), draft_rows(ctxs, model),
    state_store(ctxs, sequences, head_sync, draft_rows) {
    ctxs.watch_images([this](llama_seq_id seq) -> const pymtp_image_runs & { return sequences[seq].images(); });
    ctxs.reserve();
}

pymtp_sequence & pymtp_pair::sequence(int32_t seq, bool needs_sampler) {
    ctxs.check_seq(seq);
    if (needs_sampler && !sequences[seq].sampler) {
        throw pymtp_failure(PYMTP_INVALID, "sequence " + std::to_string(seq) + " was not told how to sample tokens");
    }
    return sequences[seq];
}

// ── failures ──

void pymtp_pair::clear_after_failure(const int32_t * seqs, int32_t n) noexcept {
    try {
        for (int32_t k = 0; k < n; ++k) {
            // the call may have failed before it checked that the sequence exists
            if (seqs[k] >= 0 && seqs[k] < ctxs.options.n_seq_max) {
                state_store.clear(seqs[k]);
            }
        }
    } catch (...) {
        mark_broken(pymtp_last_error()); // the error message is still that of the first error
    }
}

void pymtp_pair::mark_broken(const char * why) noexcept {
    try {
        broken = why;
    } catch (...) {
    }
    if (broken.empty()) {
        broken = "no memory"; // this string is so short that it needs no allocation
    }
    report_broken();
}

int pymtp_pair::report_broken() const noexcept {
    try {
        pymtp_set_error("this context failed and cannot go on: make a new one (" + broken + ")");
    } catch (...) {
        pymtp_store_error("this context failed and cannot go on: make a new one");
    }
    return PYMTP_BROKEN;
}

// ── rounds ──

// Splits the sequences into groups of adjacent sequences, at most `limit` in a group, and calls each(first, count) for
// every group.
template <typename F> static void for_each_decode(int32_t n_seqs, const int32_t * seqs, int32_t limit, F && each) {
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && n < limit && seqs[first + n] == seqs[first] + n) {
            ++n;
        }
        each(first, n);
    }
}

llama_token pymtp_pair::first_token(int32_t seq) {
    pymtp_sequence & s = sequence(seq, /*needs_sampler =*/ true);
    if (!s.first_logits()) {
        throw pymtp_failure(PYMTP_INVALID, "sequence " + std::to_string(seq) + " was not in the last prefill");
    }
    s.logprobs.clear();
    pymtp_stopwatch watch(ctxs.counters.sample_seconds);
    s.sampler->begin(s.n_past());
    llama_token token = LLAMA_TOKEN_NULL;
    if (int status = s.sample({s.first_logits(), nullptr, (size_t) ctxs.n_vocab}, s.n_past(), &token, nullptr)) {
        throw pymtp_failure(status, pymtp_no_token_error(status, s.n_past()));
    }
    draft_rows.observe(s.tokens().data(), s.n_past()); // all tokens: prefill has not seen those of a reused prefix
    draft_rows.observe_sampled(&token, 1);
    draft_rows.write(); // written now, so that the first round need not write the rows for the prompt's tokens
    return token;
}

void pymtp_pair::draft_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
        float * confidences, pymtp_outcome * outcomes) {
    ctxs.check_seqs(n_seqs, seqs);
    for (int32_t k = 0; k < n_seqs; ++k) {
        const pymtp_sequence & s = sequence(seqs[k], /*needs_sampler =*/ true);
        ctxs.check_draft(s, tokens[k], n);
        outcomes[k] = {n, PYMTP_OK, s.n_past()};
    }
    const bool fused = ctxs.is_fused();
    draft_rows.begin_drafts(fused);
    for_each_decode(n_seqs, seqs, fused ? ctxs.max_head_rows / n : 1, [&](int32_t first, int32_t count) {
        if (fused) {
            draft_chains(count, seqs + first, tokens + first, n, drafts + first*n, confidences + first*n,
                    outcomes + first);
        } else {
            outcomes[first].n = head_sync.host()->draft_tokens(
                seqs[first], tokens[first], n, drafts + first*n, confidences + first*n);
        }
        for (int32_t k = first; k < first + count; ++k) {
            if (outcomes[k].n < n) { // the head's logits are not finite, which is not a failure
                head_sync.mark_nan(seqs[k]);
            }
        }
    });
}

// Computes the chains of drafts of all sequences in one decode.
void pymtp_pair::draft_chains(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
        float * confidences, pymtp_outcome * outcomes) {
    pymtp_stopwatch watch(ctxs.counters.draft_seconds);
    for (int32_t k = 0; k < n_seqs; ++k) {
        head_sync.discard_drafts(seqs[k]);
    }
    head_sync.catch_up(n_seqs, seqs);
    draft_rows.write();
    ctxs.batch.clear();
    pymtp_sample_batch samples(n, draft_rows.n_last(), /*by_step =*/ true);
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        samples.jobs.push_back({&s, (size_t) s.n_past() + 1, nullptr, n, drafts + k*n, confidences + k*n});
        for (int32_t i = 0; i < n; ++i) {
            ctxs.batch.add(tokens[k], s.n_past() + i, pymtp_fault_chain_sequence(ctxs, seqs[k], i), false);
        }
        s.begin_drafts(tokens[k], n);
    }
    const pymtp_pending_hidden_scope hidden(ctxs);
    const pymtp_reduced_output_scope rows(ctxs, draft_rows.reduced());
    ctxs.decode_and_sample(ctxs.draft.get(), samples);
    for (int32_t k = 0; k < n_seqs; ++k) {
        outcomes[k].n = samples.jobs[k].n_sampled;
    }
}

static void check_verify(const pymtp_contexts & contexts, const pymtp_sequence & s, const llama_token * tokens,
        int32_t n) {
    const int32_t most = 1 + contexts.max_drafts();
    if (n < 1 || n > most) {
        throw pymtp_failure(PYMTP_INVALID, "verification takes 1 to " + std::to_string(most) + " tokens, not " +
                std::to_string(n));
    }
    contexts.check_room(s, n);
    contexts.check_tokens(tokens, n);
    contexts.check_prompt(s, tokens, n);
}

void pymtp_pair::verify(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch * samples) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        check_verify(ctxs, sequence(seqs[k]), tokens + k*n, n);
    }
    pymtp_stopwatch watch(ctxs.counters.verify_seconds);
    head_sync.begin_verify(n_seqs, seqs, tokens, n);
    ctxs.batch.clear();
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        for (int32_t i = 0; i < n; ++i) {
            ctxs.batch.add(tokens[k*n + i], s.n_past() + i, seqs[k], true);
        }
        s.begin_verify(tokens + k*n, n);
    }
    if (samples) {
        ctxs.decode_and_sample(ctxs.target.get(), *samples);
    } else {
        ctxs.decode(ctxs.target.get());
    }
    llama_synchronize(ctxs.target.get());
    for (int32_t k = 0; k < n_seqs; ++k) {
        sequences[seqs[k]].end_verify(n);
        head_sync.end_verify(seqs[k], tokens + k*n, n);
    }
}

void pymtp_pair::verify_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        llama_token * sampled, pymtp_outcome * outcomes) {
    ctxs.check_seqs(n_seqs, seqs);
    const int32_t n = *std::max_element(lengths, lengths + n_seqs);
    std::vector<llama_token> rows; // n tokens of each sequence, concatenated
    // All sequences are checked before the first decode, so that a refused call changes nothing.
    for (int32_t k = 0; k < n_seqs; ++k) {
        const pymtp_sequence & s = sequence(seqs[k], /*needs_sampler =*/ true);
        check_verify(ctxs, s, tokens, lengths[k]);
        ctxs.check_room(s, n);
        outcomes[k] = {0, PYMTP_OK, 0};
        rows.insert(rows.end(), tokens, tokens + lengths[k]);
        rows.resize((k + 1)*n, tokens[0]); // pads with any token, because its row is ignored
        tokens += lengths[k];
    }
    const int32_t limit = ctxs.can_batch() ? ctxs.max_verify_rows() / n : 1;
    for_each_decode(n_seqs, seqs, limit, [&](int32_t first, int32_t count) {
        pymtp_sample_batch samples(n, ctxs.n_vocab, /*by_step =*/ false);
        for (int32_t k = first; k < first + count; ++k) {
            pymtp_sequence & s = sequences[seqs[k]];
            s.logprobs.clear();
            samples.jobs.push_back({&s, (size_t) s.n_past() + 1, rows.data() + k*n, lengths[k], sampled});
            sampled += lengths[k];
        }
        verify(count, seqs + first, rows.data() + first*n, n, &samples);
        for (int32_t k = first; k < first + count; ++k) {
            const pymtp_sample_job & job = samples.jobs[k - first];
            draft_rows.observe_sampled(job.sampled, job.n_sampled);
            // The tokens before a dead end match the grammar, so the sequence keeps them.
            const int32_t stay = job.status == PYMTP_DEAD_END ? 1 + job.n_sampled : lengths[k];
            rewind(seqs[k], sequences[seqs[k]].n_past() - n + stay);
            outcomes[k] = job.outcome();
            if (job.status == PYMTP_FAILED) {
                state_store.clear(seqs[k]); // a logit is not a number, so the sequence's caches may be corrupt
            }
        }
    });
}

void pymtp_pair::rewind(int32_t seq, int32_t n_keep) {
    pymtp_sequence & s = sequence(seq);
    pymtp_stopwatch watch(ctxs.counters.rewind_seconds);
    if (n_keep > s.n_past() || n_keep < s.n_past() - s.n_rewind()) {
        throw pymtp_failure(PYMTP_INVALID, "cannot go back from " + std::to_string(s.n_past()) + " tokens to " +
                std::to_string(n_keep) + ", only " + std::to_string(s.n_rewind()) + " can be taken back");
    }
    if (n_keep == s.n_past()) {
        return;
    }
    if (!pymtp_rewind(ctxs.target.get(), seq, n_keep)) {
        throw pymtp_failure(PYMTP_FAILED, "the recurrent layers hold no state at " + std::to_string(n_keep) +
                " tokens");
    }
    s.rewind(n_keep);
    head_sync.rewind(seq);
}

void pymtp_pair::move(int32_t from, int32_t to) {
    state_store.copy(from, to);
    sequences[to].sampler  = std::move(sequences[from].sampler);
    sequences[to].logprobs = std::move(sequences[from].logprobs);
    // Nothing has failed, but this function also marks the pair as broken if clearing fails.
    clear_after_failure(&from, 1);
}
