#include "compute_guard.h"

#include "ggml-impl.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace {

// Threads compute a node together and are seldom a millisecond apart. A machine with five times as many threads as cores
// kept one waiting for 3.8 s.
std::atomic<int> patience{10}; // seconds

struct failed_team {
    int                n_failed = 0;
    std::exception_ptr first;
};

std::mutex              mutex;
std::condition_variable one_more_failed;
std::atomic<int>        n_teams{0}; // what teams holds, for those who need no lock to see that there is none
std::map<const void *, std::shared_ptr<failed_team>> teams;

std::atomic<int>  n_to_break{0};
thread_local bool guarded = false;

void break_on_purpose() {
    if (n_to_break.load(std::memory_order_relaxed) > 0 && n_to_break.fetch_sub(1) > 0) {
        GGML_ABORT("this thread was told to fail");
    }
}

// Called while the exception is handled.
void wait_for_the_others(const void * pool, int n_threads) {
    std::unique_lock<std::mutex> lock(mutex);
    std::shared_ptr<failed_team> & kept = teams[pool];
    if (!kept) {
        kept = std::make_shared<failed_team>();
        kept->first = std::current_exception();
        n_teams++;
    }
    const std::shared_ptr<failed_team> team = kept; // the one in teams goes when the first thread is done
    team->n_failed++;
    one_more_failed.notify_all();
    if (one_more_failed.wait_for(lock, std::chrono::seconds(patience), [&] { return team->n_failed == n_threads; })) {
        return;
    }
    const int n_failed = team->n_failed;
    lock.unlock();
    std::string why = "an exception";
    try {
        std::rethrow_exception(team->first);
    } catch (const std::exception & error) {
        why = error.what();
    } catch (...) {
    }
    why += ": in " + std::to_string(n_failed) + " of the " + std::to_string(n_threads) + " threads that compute a graph; the process cannot go on\n";
    GGML_LOG_ERROR("%s", why.c_str());
    fputs(why.c_str(), stderr); // nobody may be listening to the log
    abort();
}

} // namespace

void pymtp_compute_guard(void (*share)(void *), void * data, const void * pool, int n_threads) {
    guarded = true;
    try {
        break_on_purpose();
        share(data);
    } catch (...) {
        wait_for_the_others(pool, n_threads);
    }
    guarded = false;
}

void pymtp_compute_rethrow(const void * pool) {
    if (n_teams.load(std::memory_order_relaxed) == 0) {
        return;
    }
    n_to_break = 0; // of a graph with fewer threads than were told to fail
    std::exception_ptr thrown;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = teams.find(pool);
        if (found == teams.end()) {
            return;
        }
        thrown = found->second->first;
        teams.erase(found);
        n_teams--;
    }
    std::rethrow_exception(thrown);
}

bool pymtp_compute_guarded(void) {
    return guarded;
}

void pymtp_compute_break(int n, int seconds) {
    patience   = seconds;
    n_to_break = n;
}
