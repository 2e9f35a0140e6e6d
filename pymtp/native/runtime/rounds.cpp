// Implements the parts of a round: drafting, verifying and rewinding.
//
// In the fused mode a round takes two decodes. The graph of the draft context computes the whole chain of drafts. The
// graph of the target verifies the drafts, and fills the head's cache for all rows, as for a prompt; rejected tokens
// are then rewound in both caches. Hidden states stay on the device, and neither graph depends on the number of
// accepted drafts. While nothing is drafted, the target's graph only stores the hidden states, and the head processes
// up to 63 tokens together before the next draft.
#include "compare/faults.h"
#include "callbacks.h"
#include "pair.h"
#include "sample_job.h"
#include "stopwatch.h"

#include "pymtp_context.h"

#include <algorithm>

int pymtp_pair::check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const {
    if (!draft || n < 1 || n > options.n_draft) {
        pymtp_set_error("at most " + std::to_string(options.n_draft) + " drafts a round");
        return PYMTP_INVALID;
    }
    return check_tokens(&token, 1) ? check_room(s, n) : (int) PYMTP_INVALID;
}

// Splits the sequences into groups of adjacent sequences, at most `limit` in a group, and calls each(first, count) for
// every group.
template <typename F> static int for_each_decode(int32_t n_seqs, const int32_t * seqs, int32_t limit, F && each) {
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && n < limit && seqs[first + n] == seqs[first] + n) {
            ++n;
        }
        if (int status = each(first, n)) {
            return status;
        }
    }
    return PYMTP_OK;
}

int pymtp_pair::draft_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts,
        float * confidences, pymtp_outcome * outcomes) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (int status = check_draft(sequences[seqs[k]], tokens[k], n)) {
            return status;
        }
        outcomes[k] = {n, PYMTP_OK, sequences[seqs[k]].n_past};
    }
    drafts_reduced = is_fused() && draft_vocab && draft_vocab->is_worthwhile();
    if (!is_fused()) {
        return for_each_decode(n_seqs, seqs, 1, [&](int32_t k, int32_t) {
            const int status = host_hidden->draft_tokens(
                seqs[k], tokens[k], n, drafts + k*n, confidences + k*n, outcomes[k].n);
            sequences[seqs[k]].head_has_nan |= outcomes[k].n < n;
            return status;
        });
    }
    return for_each_decode(n_seqs, seqs, max_head_rows / n, [&](int32_t first, int32_t count) {
        pymtp_sample_batch samples(n, /*by_step =*/ true);
        for (int32_t k = first; k < first + count; ++k) {
            const size_t n_prefix = sequences[seqs[k]].n_past + 1;
            samples.jobs.push_back({this, seqs[k], n_prefix, nullptr, n, drafts + k*n, confidences + k*n});
        }
        if (int status = draft_chains(count, seqs + first, tokens + first, n, samples)) {
            return status;
        }
        for (int32_t k = first; k < first + count; ++k) {
            // fewer drafts than n if the head's logits are not finite, which is not a failure
            outcomes[k].n = samples.jobs[k - first].n_sampled;
            sequences[seqs[k]].head_has_nan |= outcomes[k].n < n;
        }
        return (int) PYMTP_OK;
    });
}

// Computes the chains of drafts of all sequences in one decode.
int pymtp_pair::draft_chains(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch & samples) {
    pymtp_stopwatch watch(counters.draft_seconds);
    for (int32_t k = 0; k < n_seqs; ++k) {
        discard_drafts(seqs[k]);
    }
    if (int status = catch_up_head(n_seqs, seqs)) {
        return status;
    }
    write_draft_rows();
    batch.clear();
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        for (int32_t i = 0; i < n; ++i) {
            batch.add(tokens[k], s.n_past + i, pymtp_fault_chain_sequence(*this, seqs[k], i), false);
        }
        s.tokens.push_back(tokens[k]);
        s.n_rewind  = 0;
        s.n_drafted = n;
    }
    const pymtp_pending_hidden_scope  hidden(*this);
    const pymtp_reduced_output_scope rows(*this, drafts_reduced);
    return decode_and_sample(draft.get(), samples);
}

// Clears a sequence if sampling found a logit that is not a number, because the sequence's caches may be corrupt.
void pymtp_pair::clear_if_failed(int32_t seq, const pymtp_outcome & outcome) {
    if (outcome.status == PYMTP_FAILED) {
        clear(seq);
    }
}

int pymtp_pair::check_verify(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const {
    if (n < 1 || n > 1 + options.n_draft) {
        pymtp_set_error("verification takes 1 to " + std::to_string(1 + options.n_draft) + " tokens, not " +
                std::to_string(n));
        return PYMTP_INVALID;
    }
    if (int status = check_room(s, n)) {
        return status;
    }
    return check_tokens(tokens, n) ? PYMTP_OK : PYMTP_INVALID;
}

// Processes n tokens of each sequence with the target. Afterwards all but the first of the n tokens can be rewound. The
// sequences must be adjacent.
// samples: the jobs that sample from the logits within the graph; null: the logits stay in the target context
int pymtp_pair::verify(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch * samples) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (int status = check_verify(sequences[seqs[k]], tokens + k*n, n)) {
            return status;
        }
    }
    pymtp_stopwatch watch(counters.verify_seconds);
    const bool fused = is_fused();
    if (fused) {
        begin_prefill();
        llama_set_embeddings(target.get(), false);
        // For single tokens, the head may lag behind for a while: it processes many tokens in little more time than
        // one.
        const auto may_wait = [this](int32_t seq) {
            return !host_hidden->holds(seq) && sequences[seq].n_past - sequences[seq].n_head < PYMTP_MAX_HEAD_LAG;
        };
        for (int32_t k = 0; k < n_seqs; ++k) {
            discard_drafts(seqs[k]);
        }
        if (n > 1 || !std::all_of(seqs, seqs + n_seqs, may_wait)) {
            if (int status = catch_up_head(n_seqs, seqs)) {
                return status;
            }
        }
        pymtp_set_fused_sync(target.get(), draft.get(), n == 1);
    } else {
        begin_round();
        if (draft) {
            if (int status = host_hidden->begin_verify(seqs[0], tokens[0])) {
                return status;
            }
        }
    }
    batch.clear();
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        for (int32_t i = 0; i < n; ++i) {
            batch.add(tokens[k*n + i], s.n_past + i, seqs[k], true);
        }
        s.tokens.resize(s.n_past);
        s.tokens.insert(s.tokens.end(), tokens + k*n, tokens + (k + 1)*n);
    }
    if (int status = samples ? decode_and_sample(target.get(), *samples) : decode(target.get())) {
        return status;
    }
    llama_synchronize(target.get());
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        s.n_past  += n;
        s.n_rewind = n - 1;
        s.forget_logits();
        if (fused) {
            s.n_head += n > 1 ? n : 0;
        } else if (draft) {
            host_hidden->end_verify(seqs[k], tokens + k*n, n);
        }
    }
    return PYMTP_OK;
}

int pymtp_pair::verify_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        llama_token * sampled, pymtp_outcome * outcomes) {
    const int32_t n = *std::max_element(lengths, lengths + n_seqs);
    std::vector<llama_token> rows; // n tokens of each sequence, concatenated
    // All sequences are checked before the first decode, so that a refused call changes nothing.
    for (int32_t k = 0; k < n_seqs; ++k) {
        const pymtp_sequence & s = sequences[seqs[k]];
        if (int status = check_verify(s, tokens, lengths[k])) {
            return status;
        }
        if (int status = check_room(s, n)) {
            return status;
        }
        outcomes[k] = {0, PYMTP_OK, 0};
        rows.insert(rows.end(), tokens, tokens + lengths[k]);
        rows.resize((k + 1)*n, tokens[0]); // pads with any token, because its row is ignored
        tokens += lengths[k];
    }
    return for_each_decode(n_seqs, seqs, can_batch() ? max_verify_rows() / n : 1, [&](int32_t first, int32_t count) {
        pymtp_sample_batch samples(n, /*by_step =*/ false);
        for (int32_t k = first; k < first + count; ++k) {
            pymtp_sequence & s = sequences[seqs[k]];
            s.logprobs.clear();
            samples.jobs.push_back({this, seqs[k], (size_t) s.n_past + 1, rows.data() + k*n, lengths[k], sampled});
            sampled += lengths[k];
        }
        if (int status = verify(count, seqs + first, rows.data() + first*n, n, &samples)) {
            return status;
        }
        for (int32_t k = first; k < first + count; ++k) {
            const pymtp_sample_job & job = samples.jobs[k - first];
            observe_sampled(job.sampled, job.n_sampled);
            // The tokens before a dead end match the grammar, so the sequence keeps them.
            const int32_t stay = job.status == PYMTP_DEAD_END ? 1 + job.n_sampled : lengths[k];
            if (int failed = rewind(seqs[k], sequences[seqs[k]].n_past - n + stay)) {
                return failed;
            }
            outcomes[k] = job.outcome();
            clear_if_failed(seqs[k], outcomes[k]);
        }
        return (int) PYMTP_OK;
    });
}

int pymtp_pair::rewind(int32_t seq, int32_t n_keep) {
    pymtp_sequence & s = sequences[seq];
    pymtp_stopwatch watch(counters.rewind_seconds);
    if (n_keep > s.n_past || n_keep < s.n_past - s.n_rewind) {
        pymtp_set_error("cannot go back from " + std::to_string(s.n_past) + " tokens to " + std::to_string(n_keep) +
                ", only " + std::to_string(s.n_rewind) + " can be taken back");
        return PYMTP_INVALID;
    }
    if (n_keep == s.n_past) {
        return PYMTP_OK;
    }
    if (!pymtp_rewind(target.get(), seq, n_keep)) {
        pymtp_set_error("the recurrent layers hold no state at " + std::to_string(n_keep) + " tokens");
        return PYMTP_FAILED;
    }
    s.n_rewind -= s.n_past - n_keep;
    s.n_past = n_keep;
    s.tokens.resize(n_keep);
    if (draft && host_hidden->holds(seq)) {
        host_hidden->rewind(seq, n_keep);
    } else if (draft) {
        s.n_head = n_keep;
        truncate_head(seq);
    }
    return PYMTP_OK;
}
