#include "turns.h"

#include "callbacks.h"
#include "threads/no_signals.h"

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <stdexcept>

namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50); // a wait asks at this interval whether it is to abort

} // namespace

pymtp_turns::~pymtp_turns() {
    end();
}

bool pymtp_turns::is_lost() const {
    return process != getpid();
}

void pymtp_turns::begin(std::function<void()> work) {
    shared  = std::make_unique<shared_state>();
    process = getpid();
    const pymtp_no_signals guard;
    thread  = std::thread([work = std::move(work), shared = shared.get()] {
        work();
        const std::lock_guard<std::mutex> lock(shared->mutex);
        shared->now = state::ended;
        shared->changed.notify_all();
    });
}

bool pymtp_turns::advance(double seconds) {
    if (is_lost()) {
        throw std::runtime_error("this process was forked while the work was going on");
    }
    std::unique_lock<std::mutex> lock(shared->mutex);
    constexpr double hour = 3600;
    shared->turn_ends = clock::now() + std::chrono::duration_cast<clock::duration>(
            std::chrono::duration<double>(std::min(std::max(seconds, 0.0), hour)));
    if (shared->now == state::waiting) {
        shared->now = state::running;
        shared->changed.notify_all();
    }
    while (shared->in_turn()) {
        const bool free = shared->now == state::free;
        if (free && clock::now() >= shared->turn_ends) {
            return false;
        }
        const auto poll = clock::now() + poll_interval;
        shared->changed.wait_until(lock, free ? std::min(poll, shared->turn_ends) : poll);
        lock.unlock();
        const bool abort = pymtp_abort_requested(); // it may call Python
        lock.lock();
        if (abort) {
            shared->turn_ends = clock::now();
        }
    }
    const bool ended = shared->now == state::ended;
    lock.unlock();
    if (ended) {
        thread.join();
    }
    return ended;
}

void pymtp_turns::end() {
    if (!begun()) {
        return;
    }
    if (is_lost()) {
        thread.detach();
        shared.release(); // a condition variable waits in its destructor for the threads that wait for it
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(shared->mutex);
        shared->ending = true;
        shared->changed.notify_all();
    }
    thread.join();
}

bool pymtp_turns::pause() {
    std::unique_lock<std::mutex> lock(shared->mutex);
    if (shared->now == state::running && clock::now() < shared->turn_ends) {
        return !shared->ending;
    }
    shared->now = state::waiting;
    shared->changed.notify_all();
    shared->changed.wait(lock, [&] { return shared->now == state::running || shared->ending; });
    shared->now = state::running;
    return !shared->ending;
}
