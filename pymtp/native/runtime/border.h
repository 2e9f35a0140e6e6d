// The C border: no exception crosses it. Every extern "C" function that can fail runs its body in pymtp_guarded, or, where
// it works on a pair, in pymtp_pair_call (pair_call.h).
#pragma once

#include "host.h"

#include <stdexcept>

// Keeps a text for pymtp_last_error(). When there is no memory even for that, the text before it stays.
void pymtp_keep_error(const char * text) noexcept;

// Within a catch block: keeps the text of the exception.
void pymtp_keep_exception() noexcept;

// Throws unless the arguments from C are as the header says.
inline void pymtp_require(bool fine, const char * otherwise) {
    if (!fine) {
        throw std::invalid_argument(otherwise);
    }
}

// Returns what the body returns, or, where it throws, `failed`.
template <typename R, typename F> R pymtp_guarded(R failed, F && body) noexcept {
    try {
        pymtp_errors_begin();
        return body();
    } catch (...) {
        pymtp_keep_exception();
        return failed;
    }
}

template <typename F> void pymtp_guarded(F && body) noexcept {
    try {
        pymtp_errors_begin();
        body();
    } catch (...) {
        pymtp_keep_exception();
    }
}
