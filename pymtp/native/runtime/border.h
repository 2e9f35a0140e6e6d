// The border to C. No exception crosses it, and within it a failed assertion of llama.cpp (GGML_ASSERT, GGML_ABORT) is an
// exception instead of the end of the process. Every extern "C" function that can fail runs its body in pymtp_guarded, or,
// where it works on a pair, in pymtp_pair_call (pair_call.h).
#pragma once

#include "host.h"

#include <stdexcept>
#include <string>

// A failed assertion, in llama.cpp's words. What llama.cpp was working on may be half done: use it no more, only free it.
struct pymtp_assertion : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// While one lives, its thread is in a call of ours: an assertion that fails there, or in a thread that computes a graph for
// it, is thrown. Elsewhere (another thread of llama.cpp, a destructor, a program's own use of ggml) it ends the process.
class pymtp_call {
public:
    pymtp_call();
    ~pymtp_call();
    pymtp_call(const pymtp_call &) = delete;
    pymtp_call & operator=(const pymtp_call &) = delete;

    // what the assertion said that failed in this call; "" for none. llama.cpp may have caught the exception itself
    const std::string & assertion() const;

private:
    std::string outer; // of the call that this one is within, such as a handler's
};

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

// Returns what the body returns, or, where it throws, `failed`. The error of this thread says why.
template <typename R, typename F> R pymtp_guarded(R failed, F && body) noexcept {
    pymtp_call call;
    try {
        pymtp_errors_begin();
        return body();
    } catch (...) {
        pymtp_keep_exception();
        return failed;
    }
}

template <typename F> void pymtp_guarded(F && body) noexcept {
    pymtp_guarded<bool>(false, [&] {
        body();
        return true;
    });
}
