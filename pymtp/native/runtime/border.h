// The border to C. No exception crosses it, and within it a failed assertion of llama.cpp (GGML_ASSERT, GGML_ABORT) is an
// exception instead of the end of the process.
#pragma once

#include "host.h"

#include <exception>
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
};

// Runs the body of a C function. What it throws becomes the error of this thread, and the value returned is `failed`.
template <typename T, typename F> T pymtp_guarded(T failed, F && body) noexcept {
    pymtp_call call;
    pymtp_errors_begin();
    try {
        return body();
    } catch (const std::exception & error) {
        pymtp_set_error(error.what());
    } catch (...) {
        pymtp_set_error("an exception of an unknown kind");
    }
    return failed;
}
