// Rounds: draft, verify, rewind.
//
// In the fused mode a round is two launches. The target's graph verifies and fills the head's cache for all rows, as in a
// prompt; what was not accepted is taken back in both caches. The draft context's graph holds the whole chain of drafts.
// Hidden states stay on the device, and the number of accepted drafts changes neither graph. Without drafts, the target's
// graph only keeps the hidden states, and the head takes up to 63 tokens together before the next draft.
#include "compare/faults.h"
#include "host.h"
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

// Sequences that lie side by side go through one launch, as far as there is room: each(first, how many).
template <typename F> static int by_launches(int32_t n_seqs, const int32_t * seqs, int32_t most, F && each) {
    for (int32_t first = 0, n = 1; first < n_seqs; first += n, n = 1) {
        while (first + n < n_seqs && n < most && seqs[first + n] == seqs[first] + n) {
            ++n;
        }
        if (int status = each(first, n)) {
            return status;
        }
    }
    return PYMTP_OK;
}

int pymtp_pair::draft_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, llama_token * drafts, float * confidences,
        pymtp_outcome * outcomes) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (int status = check_draft(sequences[seqs[k]], tokens[k], n)) {
            return status;
        }
        outcomes[k] = {n, PYMTP_OK, sequences[seqs[k]].n_past};
    }
    drafts_over_rows = fuses() && vocabulary && vocabulary->pays();
    if (!fuses()) {
        return by_launches(n_seqs, seqs, 1, [&](int32_t k, int32_t) {
            const int status = host->draft_tokens(seqs[k], tokens[k], n, drafts + k*n, confidences + k*n, outcomes[k].n);
            sequences[seqs[k]].odd_cells |= outcomes[k].n < n;
            return status;
        });
    }
    return by_launches(n_seqs, seqs, n_head_rows / n, [&](int32_t first, int32_t count) {
        pymtp_sample_batch samples(n, /*by_step =*/ true);
        for (int32_t k = first; k < first + count; ++k) {
            const size_t n_prefix = sequences[seqs[k]].n_past + 1;
            samples.jobs.push_back({this, seqs[k], n_prefix, nullptr, n, drafts + k*n, confidences + k*n});
        }
        if (int status = draft_chains(count, seqs + first, tokens + first, n, samples)) {
            return status;
        }
        for (int32_t k = first; k < first + count; ++k) {
            outcomes[k].n = samples.jobs[k - first].n_sampled; // fewer where the head gives no numbers: it decides on nothing
            sequences[seqs[k]].odd_cells |= outcomes[k].n < n;
        }
        return (int) PYMTP_OK;
    });
}

// All steps of all sequences in one launch.
int pymtp_pair::draft_chains(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch & samples) {
    pymtp_stopwatch watch(counters.draft_seconds);
    for (int32_t k = 0; k < n_seqs; ++k) {
        take_back_draft(seqs[k]);
    }
    if (int status = settle(n_seqs, seqs)) {
        return status;
    }
    write_draft_rows();
    batch.clear();
    for (int32_t k = 0; k < n_seqs; ++k) {
        pymtp_sequence & s = sequences[seqs[k]];
        for (int32_t i = 0; i < n; ++i) {
            batch.add(tokens[k], s.n_past + i, pymtp_fault_in_chain(*this, seqs[k], i), false);
        }
        s.tokens.push_back(tokens[k]);
        s.n_rewind = 0;
        s.n_chain  = n;
    }
    const pymtp_kept_rows  hidden(*this);
    const pymtp_draft_rows rows(*this, drafts_over_rows);
    return decode_and_sample(draft.get(), samples);
}

// Where a logit is no number, nobody knows what the sequence's caches hold: it is emptied.
void pymtp_pair::finish(int32_t seq, const pymtp_outcome & outcome) {
    if (outcome.status == PYMTP_FAILED) {
        clear(seq);
    }
}

int pymtp_pair::check_verify(const pymtp_sequence & s, const llama_token * tokens, int32_t n) const {
    if (n < 1 || n > 1 + options.n_draft) {
        pymtp_set_error("verification takes 1 to " + std::to_string(1 + options.n_draft) + " tokens, not " + std::to_string(n));
        return PYMTP_INVALID;
    }
    if (int status = check_room(s, n)) {
        return status;
    }
    return check_tokens(tokens, n) ? PYMTP_OK : PYMTP_INVALID;
}

// Takes n tokens of each sequence through the target, of which all but the first can be taken back. The logits of each row
// are left in the target context, or sampled from. The sequences lie side by side.
int pymtp_pair::verify(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, int32_t n, pymtp_sample_batch * samples) {
    for (int32_t k = 0; k < n_seqs; ++k) {
        if (int status = check_verify(sequences[seqs[k]], tokens + k*n, n)) {
            return status;
        }
    }
    pymtp_stopwatch watch(counters.verify_seconds);
    const bool fused = fuses();
    if (fused) {
        begin_prefill();
        llama_set_embeddings(target.get(), false);
        // one by one, tokens leave the head behind for a while: it takes many for little more than one
        const auto may_wait = [this](int32_t seq) {
            return !host->holds(seq) && sequences[seq].n_past - sequences[seq].n_head < PYMTP_MOST_KEPT;
        };
        for (int32_t k = 0; k < n_seqs; ++k) {
            take_back_draft(seqs[k]);
        }
        if (n > 1 || !std::all_of(seqs, seqs + n_seqs, may_wait)) {
            if (int status = settle(n_seqs, seqs)) {
                return status;
            }
        }
        pymtp_set_sync(target.get(), draft.get(), n == 1);
    } else {
        begin_round();
        if (draft) {
            if (int status = host->begin_verify(seqs[0], tokens[0])) {
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
            host->end_verify(seqs[k], tokens + k*n, n);
        }
    }
    return PYMTP_OK;
}

int pymtp_pair::verify_tokens(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, llama_token * sampled,
        pymtp_outcome * outcomes) {
    const int32_t n = *std::max_element(lengths, lengths + n_seqs);
    std::vector<llama_token> rows; // n of each sequence
    for (int32_t k = 0; k < n_seqs; ++k) { // all before the first launch: what is refused changes nothing
        const pymtp_sequence & s = sequences[seqs[k]];
        if (int status = check_verify(s, tokens, lengths[k])) {
            return status;
        }
        if (int status = check_room(s, n)) {
            return status;
        }
        outcomes[k] = {0, PYMTP_OK, 0};
        rows.insert(rows.end(), tokens, tokens + lengths[k]);
        rows.resize((k + 1)*n, tokens[0]); // of padding, any token will do
        tokens += lengths[k];
    }
    return by_launches(n_seqs, seqs, together() ? most_rows() / n : 1, [&](int32_t first, int32_t count) {
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
            see_chosen(job.sampled, job.n_sampled);
            // the tokens before a dead end fit the grammar: they stay
            const int32_t stay = job.status == PYMTP_DEAD_END ? 1 + job.n_sampled : lengths[k];
            if (int failed = rewind(seqs[k], sequences[seqs[k]].n_past - n + stay)) {
                return failed;
            }
            outcomes[k] = job.outcome();
            finish(seqs[k], outcomes[k]);
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
    s.n_past    = n_keep;
    s.tokens.resize(n_keep);
    if (draft && host->holds(seq)) {
        host->rewind(seq, n_keep);
    } else if (draft) {
        s.n_head = n_keep;
        drop_drafts(seq);
    }
    return PYMTP_OK;
}
