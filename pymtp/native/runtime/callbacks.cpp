#include "callbacks.h"
#include "pymtp.h"
#include "build_info.h"
#include "threads/team.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50);

std::atomic<pymtp_log_callback>  log_callback{nullptr};
std::atomic<int>                 log_level{GGML_LOG_LEVEL_WARN};
std::atomic<pymtp_poll_callback> poll_callback{nullptr};

thread_local std::string last_error;
thread_local std::string logged_errors;
thread_local int         continued_level = GGML_LOG_LEVEL_INFO;
thread_local bool        abort_requested = false; // the poll callback has asked to abort this thread's current call

void on_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    // a continuation of a line has the level of the line's beginning
    if (level == GGML_LOG_LEVEL_CONT) {
        level = (ggml_log_level) continued_level;
    }
    continued_level = level;
    if (level == GGML_LOG_LEVEL_ERROR) {
        logged_errors += text;
    }
    pymtp_log_callback callback = log_callback;
    if (callback && level >= log_level) {
        callback(level, text);
    }
}

// Returns a time with a resolution of a few milliseconds, from a clock that is cheap to read: it is read after every
// node of a graph.
std::chrono::nanoseconds coarse_now() {
#ifdef CLOCK_MONOTONIC_COARSE
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
#else
    return std::chrono::steady_clock::now().time_since_epoch();
#endif
}

} // namespace

void pymtp_clear_errors() {
    logged_errors.clear();
    abort_requested = false;
}

void pymtp_set_error(const std::string & text) {
    last_error = text;
    while (!logged_errors.empty() && logged_errors.back() == '\n') {
        logged_errors.pop_back();
    }
    if (!logged_errors.empty()) {
        last_error += ": " + logged_errors;
        logged_errors.clear();
    }
}

void pymtp_log_error(const std::string & text) {
    on_log(GGML_LOG_LEVEL_ERROR, text.c_str(), nullptr);
}

bool pymtp_abort_requested() {
    pymtp_poll_callback callback = poll_callback;
    if (!callback) {
        return false;
    }
    thread_local auto last_poll = coarse_now();
    const auto now = coarse_now();
    if (now - last_poll < poll_interval) {
        return abort_requested;
    }
    last_poll = now;
    // The callback may run a Python signal handler, which may even start another native call: leave the team of
    // threads.
    const pymtp_team_part part = pymtp_team_leave();
    abort_requested = callback();
    pymtp_team_return(part);
    return abort_requested;
}

const char * pymtp_last_error(void) {
    return last_error.c_str();
}

void pymtp_set_log(pymtp_log_callback callback, int level) {
    static std::once_flag once;
    std::call_once(once, [] { llama_log_set(on_log, nullptr); });
    log_level    = level;
    log_callback = callback;
}

void pymtp_set_poll(pymtp_poll_callback callback) {
    poll_callback = callback;
}

const char * pymtp_build_llama_commit(void)       { return PYMTP_LLAMA_COMMIT; }
const char * pymtp_build_patches(void)            { return PYMTP_PATCHES; }
const char * pymtp_build_compiler(void)           { return PYMTP_COMPILER; }
const char * pymtp_build_type(void)               { return PYMTP_BUILD_TYPE; }
const char * pymtp_build_cuda_architectures(void) { return PYMTP_CUDA_ARCHITECTURES; }

size_t pymtp_system_memory() {
    ggml_backend_dev_t host = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!host) {
        return SIZE_MAX;
    }
    size_t free  = 0;
    size_t total = 0;
    ggml_backend_dev_memory(host, &free, &total);
    return total;
}
