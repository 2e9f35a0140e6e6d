#include "api_guard.h"

#include "threads/compute_guard.h"

#include "ggml.h"

#include <cstdio>
#include <exception>

namespace {

thread_local int         n_calls = 0; // nesting depth of pymtp_call
thread_local std::string failed_assertion;

// Removes the folder of the source file from a message such as "folder/file:line: text".
std::string without_folder(const std::string & message) {
    return message.substr(message.find_last_of("/\\", message.find(": ")) + 1);
}

// Throws pymtp_assertion if a call of ours is running; otherwise it returns, and ggml then ends the process. The
// exception passes through ggml's C and C++ frames, so they must be compiled with -fexceptions.
void on_failed_assertion(const char * text) {
    const std::string message = without_folder(text);
    if (n_calls == 0 && !pymtp_compute_guarded()) {
        const std::string last_words = message + ": outside of pymtp's calls; the process cannot go on\n";
        pymtp_log_error(last_words);
        fputs(last_words.c_str(), stderr); // as well, because no log callback may be set
        return;
    }
    failed_assertion = message;
    throw pymtp_assertion(message);
}

// The callback is installed when the module is loaded. Without a callback, ggml would start a debugger to print a
// backtrace.
const auto callback_before = ggml_set_abort_callback(on_failed_assertion);

} // namespace

pymtp_call::pymtp_call() {
    n_calls++;
    outer.swap(failed_assertion);
}

pymtp_call::~pymtp_call() {
    n_calls--;
    outer.swap(failed_assertion);
}

const std::string & pymtp_call::assertion() const {
    return failed_assertion;
}

void pymtp_store_error(const char * text) noexcept {
    try {
        pymtp_set_error(text);
    } catch (...) {
    }
}

void pymtp_store_exception() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        pymtp_store_error("there is not enough memory");
    } catch (const std::exception & error) {
        pymtp_store_error(error.what());
    } catch (...) {
        pymtp_store_error("an exception that says nothing of itself");
    }
}
