// A call on a pair from C. See pymtp_status for what callers are promised.
#pragma once

#include "border.h"
#include "pair.h"

// Runs the body for n sequences. Where it fails or is cancelled, they are emptied: nobody knows how far their caches and
// recurrent states got. Where that fails too, the pair is broken.
template <typename F> int pymtp_pair_call(pymtp_pair * pair, const int32_t * seqs, int32_t n, F && body) noexcept {
    const pymtp_call call;
    pymtp_errors_begin();
    if (!pair->broken.empty()) {
        pair->say_broken();
        return PYMTP_BROKEN;
    }
    int status = PYMTP_FAILED;
    try {
        status = body();
    } catch (...) {
        pymtp_keep_exception();
    }
    if (!call.assertion().empty()) {
        // llama.cpp may have caught the exception itself; what it was working on must not even be emptied
        pair->break_for_good(("an assertion of llama.cpp failed: " + call.assertion()).c_str());
    } else if (status == PYMTP_FAILED || status == PYMTP_CANCELLED) {
        pair->empty_after_failure(seqs, n);
    }
    return pair->broken.empty() ? status : (int) PYMTP_BROKEN;
}

// The same for one sequence, which must exist.
template <typename F> int pymtp_pair_call(pymtp_pair * pair, int32_t seq, F && body) noexcept {
    return pymtp_pair_call(pair, &seq, 1, [&] { return pair->check_seq(seq) ? body() : (int) PYMTP_INVALID; });
}
