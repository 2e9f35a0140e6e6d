// Runs calls on a pair from C. pymtp_status documents the guarantees.
#pragma once

#include "api_guard.h"
#include "pair.h"

// Runs the body for n sequences. When it fails or is cancelled, they are cleared, because the state of their caches
// and recurrent layers is unknown. When that fails, too, the pair is broken.
template <typename F> int pymtp_pair_call(pymtp_pair * pair, const int32_t * seqs, int32_t n, F && body) noexcept {
    const pymtp_call call;
    pymtp_clear_errors();
    if (!pair->broken.empty()) {
        pair->report_broken();
        return PYMTP_BROKEN;
    }
    int status = PYMTP_FAILED;
    try {
        status = body();
    } catch (...) {
        pymtp_store_exception();
    }
    if (!call.assertion().empty()) {
        // llama.cpp may have caught the exception; its objects may be inconsistent and must not even be cleared
        pair->mark_broken(("an assertion of llama.cpp failed: " + call.assertion()).c_str());
    } else if (status == PYMTP_FAILED || status == PYMTP_CANCELLED) {
        pair->clear_after_failure(seqs, n);
    }
    return pair->broken.empty() ? status : (int) PYMTP_BROKEN;
}

// Does the same for one sequence, which must exist.
template <typename F> int pymtp_pair_call(pymtp_pair * pair, int32_t seq, F && body) noexcept {
    return pymtp_pair_call(pair, &seq, 1, [&] { return pair->check_seq(seq) ? body() : (int) PYMTP_INVALID; });
}
