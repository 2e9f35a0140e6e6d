#include "sleep.h"

#if defined(__linux__)
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel looks at 32 bits");

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void pymtp_wake_all(std::atomic<uint32_t> & word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value) {
    WaitOnAddress(&word, &value, sizeof(value), INFINITE);
}

void pymtp_wake_all(std::atomic<uint32_t> & word) {
    WakeByAddressAll(&word);
}

#else
#include <condition_variable>
#include <mutex>

// One pair for all words: sleeps are rare.
static std::mutex              mutex;
static std::condition_variable changed;

void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value) {
    std::unique_lock<std::mutex> lock(mutex);
    if (word.load() == value) {
        changed.wait(lock);
    }
}

void pymtp_wake_all(std::atomic<uint32_t> &) {
    const std::lock_guard<std::mutex> lock(mutex);
    changed.notify_all();
}
#endif
