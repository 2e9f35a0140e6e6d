#include "threads/sleep.h"

#if defined(__linux__)
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel looks at 32 bits");

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds) {
    const timespec time = { microseconds/1000000, 1000L*(microseconds % 1000000) };
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, microseconds > 0 ? &time : nullptr, nullptr, 0);
}

void pymtp_wake_all(std::atomic<uint32_t> & word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <algorithm>

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds) {
    WaitOnAddress(&word, &value, sizeof(value), microseconds > 0 ? std::max(1, microseconds/1000) : INFINITE);
}

void pymtp_wake_all(std::atomic<uint32_t> & word) {
    WakeByAddressAll(&word);
}

#else
#include <chrono>
#include <condition_variable>
#include <mutex>

// All words share one mutex and one condition variable, since sleeps are rare.
static std::mutex              mutex;
static std::condition_variable changed;

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds) {
    std::unique_lock<std::mutex> lock(mutex);
    if (word.load() != value) {
        return;
    }
    if (microseconds > 0) {
        changed.wait_for(lock, std::chrono::microseconds(microseconds));
    } else {
        changed.wait(lock);
    }
}

void pymtp_wake_all(std::atomic<uint32_t> &) {
    const std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
}
#endif
