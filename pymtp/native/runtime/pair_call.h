// Runs the functions of the C API that work on a pair, with the guarantees that pymtp_status documents.
#pragma once

#include "api_guard.h"
#include "pair.h"

// Runs the body of a call for n sequences. When the body fails or is cancelled, the sequences are cleared, because the
// state of their caches and recurrent layers is unknown. When clearing fails as well, the pair is marked as broken.
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
        // Checked even if body() returned, because llama.cpp may have caught the exception. Its objects may be
        // inconsistent, so the sequences must not even be cleared.
        pair->mark_broken(("an assertion of llama.cpp failed: " + call.assertion()).c_str());
    } else if (status == PYMTP_FAILED || status == PYMTP_CANCELLED) {
        pair->clear_after_failure(seqs, n);
    }
    return pair->broken.empty() ? status : (int) PYMTP_BROKEN;
}

// Runs the body of a call for one sequence. Returns PYMTP_INVALID if there is no such sequence.
template <typename F> int pymtp_pair_call(pymtp_pair * pair, int32_t seq, F && body) noexcept {
    return pymtp_pair_call(pair, &seq, 1, [&] { return pair->check_seq(seq) ? body() : (int) PYMTP_INVALID; });
}
