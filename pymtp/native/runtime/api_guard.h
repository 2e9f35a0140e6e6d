// Guards the C API. No exception leaves it, and inside it a failed assertion of llama.cpp (GGML_ASSERT, GGML_ABORT)
// throws an exception instead of ending the process. Every extern "C" function that can fail runs its body in
// pymtp_guarded or, when it works on a pair, in pymtp_pair_call (pair_call.h).
#pragma once

#include "callbacks.h"

#include <stdexcept>
#include <string>

// A failed assertion, with llama.cpp's message. The object that llama.cpp was working on may be inconsistent: only
// free it.
struct pymtp_assertion : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Marks a scope as a call of ours: an assertion that fails in this thread, or in a thread that computes a graph for
// it, throws. Elsewhere (another thread of llama.cpp, a destructor, a program's own use of ggml) it ends the process.
class pymtp_call {
public:
    pymtp_call();
    ~pymtp_call();
    pymtp_call(const pymtp_call &) = delete;
    pymtp_call & operator=(const pymtp_call &) = delete;

    // Returns the message of the assertion that failed in this call, "" for none, even when llama.cpp caught the
    // exception.
    const std::string & assertion() const;

private:
    std::string outer; // the message of the enclosing call, such as one that runs a signal handler
};

// Stores a text for pymtp_last_error(). Without memory for it, the previous text stays.
void pymtp_store_error(const char * text) noexcept;

// Stores the text of the exception that is being handled.
void pymtp_store_exception() noexcept;

// Throws std::invalid_argument unless the arguments from C satisfy the header.
inline void pymtp_require(bool fine, const char * otherwise) {
    if (!fine) {
        throw std::invalid_argument(otherwise);
    }
}

// Runs the body and returns its result. When it throws, stores the error and returns `failed`.
template <typename R, typename F> R pymtp_guarded(R failed, F && body) noexcept {
    pymtp_call call;
    try {
        pymtp_clear_errors();
        return body();
    } catch (...) {
        pymtp_store_exception();
        return failed;
    }
}

template <typename F> void pymtp_guarded(F && body) noexcept {
    pymtp_guarded<bool>(false, [&] {
        body();
        return true;
    });
}
