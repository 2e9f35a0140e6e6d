// Guards the functions of the C API. No exception leaves such a function, and while it runs, a failed assertion of
// llama.cpp (GGML_ASSERT, GGML_ABORT) throws an exception instead of ending the process. Every extern "C" function that
// can fail runs its body in pymtp_guarded or, if it works on a pair's contexts, in pymtp_pair::call.
#pragma once

#include "callbacks.h"

#include <stdexcept>
#include <string>

// Reports a failed assertion, with llama.cpp's message. The object that llama.cpp was working on may be inconsistent,
// so nothing but freeing it is allowed afterwards.
struct pymtp_assertion : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Ends a call on a pair with a status other than PYMTP_OK, and an error message.
struct pymtp_failure : std::runtime_error {
    pymtp_failure(int status, const std::string & message) : std::runtime_error(message), status(status) {}

    const int status;
};

// While an object of this class lives, its thread runs a call of ours: an assertion of ggml that fails in this thread,
// or in a thread that computes a graph for it, throws an exception. An assertion that fails anywhere else (in another
// thread of llama.cpp, in a destructor, in a program's own use of ggml) ends the process.
class pymtp_call {
public:
    pymtp_call();
    ~pymtp_call();
    pymtp_call(const pymtp_call &) = delete;
    pymtp_call & operator=(const pymtp_call &) = delete;

    // Returns the message of the assertion that failed in this call, or "" if none failed. The message is kept even
    // when llama.cpp has caught the exception.
    const std::string & assertion() const;

private:
    // the assertion message of the enclosing call, for a call that is made by a signal handler during another call
    std::string outer;
};

// Stores an error message for pymtp_last_error(). If there is no memory for the message, the previous one stays.
void pymtp_store_error(const char * text) noexcept;

// Stores the message of the exception that the calling catch block handles, for pymtp_last_error().
void pymtp_store_exception() noexcept;

// Throws std::invalid_argument with the message `otherwise` unless `fine` is true. Used to check arguments that come
// from C.
inline void pymtp_require(bool fine, const char * otherwise) {
    if (!fine) {
        throw std::invalid_argument(otherwise);
    }
}

// Runs the body and returns its result. If the body throws, stores the error message and returns `failed`.
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
