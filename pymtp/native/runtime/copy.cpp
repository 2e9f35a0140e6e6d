// Copies a sequence to an empty one, or moves it there.
#include "compare/faults.h"
#include "callbacks.h"
#include "pair.h"

#include "pymtp_context.h"

int pymtp_pair::copy(int32_t from, int32_t to) {
    if (!check_seq(from)) {
        return PYMTP_INVALID;
    }
    pymtp_sequence & s = sequences[from];
    pymtp_sequence & t = sequences[to];
    if (from == to || t.n_past > 0 || t.n_drafted > 0) {
        pymtp_set_error("sequence " + std::to_string(to) + " holds " + std::to_string(t.n_past) +
                " tokens: a copy goes to another sequence, which is empty");
        return PYMTP_INVALID;
    }
    clear(to); // drops hidden states on the host and logits that the sequence has kept from its earlier tokens
    if (draft) {
        discard_drafts(from);
    }
    const int64_t n_target = pymtp_copy_sequence(target.get(), from, to, s.n_past, s.n_head);
    if (n_target < 0) {
        pymtp_set_error("cancelled");
        return PYMTP_CANCELLED;
    }
    pymtp_fault_in_copy(*this);
    const int64_t n_draft = draft ? pymtp_copy_sequence(draft.get(), from, to, s.n_head, s.n_head) : 0;
    if (n_draft < 0) {
        pymtp_set_error("cancelled");
        return PYMTP_CANCELLED;
    }
    if (draft) {
        host_hidden->copy(from, to);
    }
    t.n_past = s.n_past;
    t.n_head = s.n_head;
    t.head_has_nan = s.head_has_nan;
    t.tokens = s.tokens;
    if (s.first_logits) {
        t.copied_logits.assign(s.first_logits, s.first_logits + n_vocab);
        t.first_logits = t.copied_logits.data();
    }
    counters.sequence_bytes += n_target + n_draft;
    return PYMTP_OK;
}

int pymtp_pair::move(int32_t from, int32_t to) {
    if (int status = copy(from, to)) {
        return status;
    }
    sequences[to].sampler  = std::move(sequences[from].sampler);
    sequences[to].logprobs = std::move(sequences[from].logprobs);
    // Nothing has failed, but this function also marks the pair as broken if clearing fails.
    clear_after_failure(&from, 1);
    return PYMTP_OK;
}
