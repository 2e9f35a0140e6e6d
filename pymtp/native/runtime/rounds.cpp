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

int pymtp_pair::check_draft(const pymtp_sequence & s, llama_token token, int32_t n) const {
    if (!draft || n < 1 || n > options.n_draft) {
        pymtp_set_error("at most " + std::to_string(options.n_draft) + " drafts a round");
        return PYMTP_INVALID;
    }
    return check_tokens(&token, 1) ? check_room(s, n) : (int) PYMTP_INVALID;
}

int pymtp_pair::draft_tokens(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    if (int status = check_draft(sequences[seq], token, n)) {
        return status;
    }
    drafts_over_rows = fuses() && vocabulary && vocabulary->pays();
    return fuses() ? draft_chain(seq, token, n, drafts, confidences) : host->draft_tokens(seq, token, n, drafts, confidences);
}

// All steps in one launch.
int pymtp_pair::draft_chain(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences) {
    pymtp_sequence & s = sequences[seq];
    pymtp_stopwatch watch(counters.draft_seconds);
    take_back_draft(seq);
    if (int status = settle(seq)) {
        return status;
    }
    write_draft_rows();
    batch.clear();
    for (int32_t i = 0; i < n; ++i) {
        batch.add(token, s.n_past + i, pymtp_fault_in_chain(*this, seq, i), false);
    }
    s.tokens.push_back(token);
    s.n_rewind = 0;
    s.n_chain  = n;
    pymtp_sample_job job = {this, seq, s.tokens.size(), nullptr, n, drafts, confidences};
    const pymtp_kept_rows  hidden(*this);
    const pymtp_draft_rows rows(*this, drafts_over_rows);
    if (int status = decode_and_sample(draft.get(), job)) {
        return status;
    }
    return job.status ? say_unsampled(job.status, job.n_prefix) : (int) PYMTP_OK;
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

// Takes n tokens through the target, of which all but the first can be taken back. The logits of each row are left in the
// target context, or sampled from where there is a job.
int pymtp_pair::verify(int32_t seq, const llama_token * tokens, int32_t n, pymtp_sample_job * job) {
    pymtp_sequence & s = sequences[seq];
    if (int status = check_verify(s, tokens, n)) {
        return status;
    }
    pymtp_stopwatch watch(counters.verify_seconds);
    const bool fused = fuses();
    if (fused) {
        begin_prefill();
        llama_set_embeddings(target.get(), false);
        pymtp_set_snapshots(target.get(), n > 1);
        take_back_draft(seq);
        // one by one, tokens leave the head behind for a while: it takes many for little more than one
        const bool defer = n == 1 && !host->holds(seq) && s.n_past - s.n_head < PYMTP_MOST_KEPT;
        if (!defer) {
            if (int status = settle(seq)) {
                return status;
            }
        }
        pymtp_set_sync(target.get(), draft.get(), n == 1);
    } else {
        begin_round();
        if (draft) {
            if (int status = host->begin_verify(seq, tokens[0])) {
                return status;
            }
        }
    }
    batch.clear();
    for (int32_t i = 0; i < n; ++i) {
        batch.add(tokens[i], s.n_past + i, seq, true);
    }
    s.tokens.resize(s.n_past);
    s.tokens.insert(s.tokens.end(), tokens, tokens + n);
    if (int status = job ? decode_and_sample(target.get(), *job) : decode(target.get())) {
        return status;
    }
    llama_synchronize(target.get());
    s.n_past  += n;
    s.n_rewind = n - 1;
    s.first_logits = nullptr;
    if (fused) {
        s.n_head += n > 1 ? n : 0;
    } else if (draft) {
        host->end_verify(seq, tokens, n);
    }
    return PYMTP_OK;
}

int pymtp_pair::verify_tokens(
        int32_t seq, const llama_token * tokens, int32_t n, llama_token * sampled, int32_t * n_sampled) {
    const int32_t n_before = sequences[seq].n_past;
    pymtp_sample_job job = {this, seq, (size_t) n_before + 1, tokens, n, sampled};
    logprobs.clear();
    const int status = verify(seq, tokens, n, &job);
    *n_sampled = status ? 0 : job.n_sampled;
    see_chosen(sampled, *n_sampled);
    if (status || !job.status) {
        return status;
    }
    if (job.status == PYMTP_DEAD_END) { // the tokens before it fit the grammar: they stay
        if (int failed = rewind(seq, n_before + 1 + job.n_sampled)) {
            return failed;
        }
    }
    return say_unsampled(job.status, job.n_prefix);
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
    s.n_past   = n_keep;
    s.n_rewind = 0; // a snapshot serves once, until the next decode
    s.tokens.resize(n_keep);
    if (draft && host->holds(seq)) {
        host->rewind(seq, n_keep);
    } else if (draft) {
        s.n_head = n_keep;
        drop_drafts(seq);
    }
    return PYMTP_OK;
}
