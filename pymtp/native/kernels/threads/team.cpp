#include "threads/team.h"

#include "threads/free_cores.h"
#include "threads/no_signals.h"
#include "threads/quota.h"
#include "threads/sleep.h"
#include "threads/team_size.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <exception>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#endif

namespace {

using team_clock = std::chrono::steady_clock;

// How a thread waits. It first spins. Then it yields its core now and then, because the thread that it waits for may
// need the core, and spins between the yields. The yields become rarer, because Linux charges each yield to the thread,
// and gives the time even to programs of the lowest priority (nice 19). At last it sleeps. It sleeps late, because
// another program may take the core of a sleeping thread and keep it for some ms, and a wakeup takes 20 to 100 us.
struct wait_policy {
    std::chrono::microseconds first_yield;  // time since the start of the wait at which the thread first yields
    std::chrono::microseconds last_yield;   // time since the start of the wait at which the yields end
    // At a barrier, sleeps have a limit, because the barrier may fail to wake a thread that is about to sleep.
    int                       max_sleep_us; // longest sleep, 0 for no limit
};

constexpr std::chrono::microseconds NONE(0), SHORT_WAIT(40), LONGER_THAN_A_TIME_SLICE(10000);

constexpr wait_policy AT_BARRIER         = { SHORT_WAIT, LONGER_THAN_A_TIME_SLICE, 1000 };
constexpr wait_policy AT_CROWDED_BARRIER = { NONE, NONE, 1000 }; // for more threads than cores: sleeps almost at once
constexpr wait_policy FOR_WORK           = { std::chrono::microseconds(500), NONE, 0 };

constexpr int SPINS_PER_CLOCK = 32; // number of reads of the word between two reads of the clock
constexpr int YIELD_FACTOR    = 4;  // factor by which the time of the next yield grows

constexpr double CHECK_SECONDS = 0.1; // seconds between two checks of free cores and quotas

double to_seconds(team_clock::duration time) {
    return std::chrono::duration<double>(time).count();
}

// Returns the CPU time of this thread in seconds, or 0 on systems that do not report it.
double thread_cpu_seconds() {
#ifdef __linux__
    timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
        return time.tv_sec + 1e-9*time.tv_nsec;
    }
#endif
    return 0;
}

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield" ::: "memory");
#endif
}

// Waits while the word has the value `value`. Returns about how many seconds the wait took, or 0 if the first spins
// were enough. n_asleep counts the threads that sleep on the word.
double wait_while(
        std::atomic<uint32_t> & word, uint32_t value, std::atomic<int> & n_asleep, const wait_policy & policy) {
    const auto changed = [&] {
        for (int i = 0; i < SPINS_PER_CLOCK; ++i) {
            if (word.load(std::memory_order_acquire) != value) {
                return true;
            }
            relax();
        }
        return false;
    };
    if (changed()) {
        return 0;
    }
    const auto begin = team_clock::now();
    auto       now        = begin;
    auto       next_yield = policy.first_yield;
    while (!changed()) {
        now = team_clock::now();
        if (now - begin <= next_yield) {
            continue;
        }
        if (now - begin <= policy.last_yield) {
            std::this_thread::yield();
            next_yield *= YIELD_FACTOR;
            now = team_clock::now();
        } else {
            n_asleep.fetch_add(1);
            while (word.load() == value) {
                pymtp_sleep_while(word, value, policy.max_sleep_us);
            }
            n_asleep.fetch_sub(1);
            now = team_clock::now();
            break;
        }
    }
    return to_seconds(now - begin);
}

void increment_and_wake(std::atomic<uint32_t> & word, std::atomic<int> & n_asleep) {
    word.fetch_add(1);
    if (n_asleep.load() > 0) {
        pymtp_wake_all(word);
    }
}

struct thread_team;

struct worker {
    alignas(64) std::atomic<uint32_t> n_jobs{0}; // incremented once for each graph, to start the worker
    std::atomic<int>                  n_asleep{0};
};

// Threads that compute one graph together. A team is never freed, because a thread may still be leaving a barrier of
// one graph when the next graph has begun.
struct thread_team {
    void (*share)(void *, int) = nullptr;
    void * data = nullptr;

    std::vector<std::unique_ptr<worker>> workers;

    alignas(64) std::atomic<int>      n_arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0}; // changes when all threads have arrived at the barrier
    std::atomic<int>                  n_asleep{0};
    std::atomic<int64_t>              stalled{0}; // nanoseconds of long waits at the graph's barriers, of all threads

    // The fields below describe the graph that the team computes.
    bool                   all_threads = false; // argument of pymtp_team_begin()
    bool                   trial       = false; // the graph is a trial of another number of threads
    bool                   aborted     = false; // the graph was aborted, so its time does not count
    bool                   crowded     = false; // the graph has more threads than there are cores
    uint64_t               kind        = 0;
    int64_t                n_rows      = 1;
    int                    n_asked     = 0;     // number of threads that were asked for
    int                    n           = 0;     // number of threads that the graph has
    int                    n_max       = 0;
    double                 quota       = 0;     // CPU quota in cores that throttles the process, 0 if none does
    double                 cpu_seconds_before = 0; // first thread's CPU time at the graph's start, 0 without quota
    team_clock::time_point begin;
};

thread_local thread_team * current = nullptr;

void run_worker(thread_team * team, worker * self, int i) {
    current = team;
    for (uint32_t seen = 0;; ++seen) {
        wait_while(self->n_jobs, seen, self->n_asleep, FOR_WORK);
        team->share(team->data, i);
    }
}

// Starts one more worker thread. Returns false if the system cannot start one.
bool start_thread(thread_team & team) {
    const pymtp_no_signals guard;
    const size_t n_before = team.workers.size();
    try {
        team.workers.push_back(std::make_unique<worker>());
        std::thread(run_worker, &team, team.workers.back().get(), (int) team.workers.size()).detach();
    } catch (const std::exception &) { // the system has no more threads, or no memory for one
        team.workers.resize(n_before);
        return false;
    }
    return true;
}

// Returns the number of cores that this process may use.
int count_cores() {
#ifdef __linux__
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof(usable), &usable) == 0) {
        return std::max(1, CPU_COUNT(&usable));
    }
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

struct pool {
    std::mutex              mutex;
    std::condition_variable cores_freed;
    std::deque<uint64_t>    queue; // tickets of the graphs that wait for cores
    uint64_t                next_ticket = 0;
    int                     n_cores     = count_cores();
    int                     n_used      = 0; // number of cores that graphs use

    std::vector<thread_team *> idle;        // teams without a graph
    size_t                     n_teams = 0; // number of all teams; `idle` has capacity for all of them

    double     checked_at = 0; // time at which free_cores and quota were last read
    double     free_cores = -1;
    double     quota      = 0; // CPU quota in cores that throttled the process lately, 0 if none did
    team_sizes sizes;
};

pool *       global_pool   = nullptr;
cpu_quotas * global_quotas = nullptr;

// Returns the pool of the process. A child process made by fork gets a new pool, since it does not have the threads of
// the old one.
pool & get_pool() {
    static const bool made = [] {
        global_pool   = new pool;
        global_quotas = new cpu_quotas;
#ifndef _WIN32
        pthread_atfork([] { global_quotas->lock(); }, [] { global_quotas->unlock(); }, [] {
            global_quotas->unlock();
            global_pool = new pool;
            current     = nullptr;
        });
#endif
        return true;
    }();
    (void) made;
    return *global_pool;
}

// Returns a number for the kind of a graph. Graphs of the same kind take about the same time per row.
uint64_t graph_kind(int n_nodes, int64_t n_rows) {
    int64_t max_rows = 1; // of the kind: each number up to 16 is a kind, then each power of two
    while (max_rows < n_rows) {
        max_rows += max_rows < 16 ? 1 : max_rows;
    }
    return 1000003ull*n_nodes + max_rows;
}

thread_local int      n_held   = 0; // number of cores that the graph of this thread holds
thread_local uint32_t n_trials = 0; // number of this thread's graphs that were trials

} // namespace

int pymtp_team_begin(int n_asked, bool all_threads, int n_nodes, int64_t n_rows) {
    const uint64_t kind = graph_kind(n_nodes, n_rows);
    pool & global = get_pool();
    std::unique_lock<std::mutex> lock(global.mutex);
    const int n_max = all_threads ? n_asked : std::min(n_asked, global.n_cores);
    team_sizes::choice chosen = { n_max, false };
    if (!all_threads && n_max > 1) {
        chosen = global.sizes.choose(kind, n_max, to_seconds(team_clock::now().time_since_epoch()));
    }
    const int n = chosen.n;
    n_held = std::min(n, global.n_cores);
    if (!global.queue.empty() || global.n_used + n_held > global.n_cores) {
        const uint64_t ticket = global.next_ticket++;
        global.queue.push_back(ticket);
        global.cores_freed.wait(lock, [&] {
            return global.queue.front() == ticket && global.n_used + n_held <= global.n_cores;
        });
        global.queue.pop_front();
        global.cores_freed.notify_all();
    }
    if (n_max == 1) {
        global.n_used += n_held;
        current = nullptr;
        return 1;
    }
    if (global.idle.empty()) {
        global.idle.reserve(global.n_teams + 1);
        global.idle.push_back(new thread_team);
        global.n_teams++;
    }
    current = global.idle.back();
    global.idle.pop_back();
    global.n_used += n_held;
    const double quota = global.quota;
    lock.unlock();
    while ((int) current->workers.size() < n - 1 && start_thread(*current)) {
    }
    current->all_threads        = all_threads;
    current->trial              = chosen.trial;
    current->aborted            = false;
    current->n_asked            = n;
    current->kind               = kind;
    current->n_rows             = std::max<int64_t>(1, n_rows);
    current->n                  = std::min(n, 1 + (int) current->workers.size());
    current->n_max              = n_max;
    current->begin              = team_clock::now();
    current->quota              = quota;
    current->cpu_seconds_before = quota > 0 ? thread_cpu_seconds() : 0;
    current->crowded            = n > global.n_cores;
    current->stalled.store(0, std::memory_order_relaxed);
    return current->n;
}

void pymtp_team_run(int n, void (*share)(void *, int), void * data) {
    thread_team * team = current;
    if (team) {
        team->share = share;
        team->data  = data;
        for (int i = 0; i < n - 1; ++i) {
            increment_and_wake(team->workers[i]->n_jobs, team->workers[i]->n_asleep);
        }
    }
    share(data, 0);

    pool & global = get_pool();
    const std::lock_guard<std::mutex> lock(global.mutex);
    global.n_used -= n_held;
    n_held = 0;
    if (team) {
        const auto   now     = team_clock::now();
        const double seconds = to_seconds(now.time_since_epoch());
        const double graph_seconds = to_seconds(now - team->begin);
        if (seconds - global.checked_at > CHECK_SECONDS) {
            global.checked_at = seconds;
            global.free_cores = pymtp_free_cores();
            global.quota      = global_quotas->active_quota(seconds);
        }
        if (!team->all_threads && !team->aborted) {
            const double stalled_seconds = 1e-9*team->stalled.load(std::memory_order_relaxed); // of all threads
            // With a quota, the cost follows from CPU time and not from the clock: once the quota is used up, the
            // system stops all threads, but perhaps only in a later graph.
            const double cost = team->quota > 0
                ? (thread_cpu_seconds() - team->cpu_seconds_before)*std::max(1.0, team->n/team->quota) : graph_seconds;
            const double stalled = team->n > 1 ? stalled_seconds/((team->n - 1)*graph_seconds) : 0;
            const graph_timing timing = {
                team->n_asked, team->n, cost/team->n_rows, graph_seconds, stalled, team->quota };
            global.sizes.add(team->kind, team->n_max, timing, seconds, global.free_cores);
            n_trials += team->trial;
        }
        global.idle.push_back(team);
        current = nullptr;
    }
    if (!global.queue.empty()) {
        global.cores_freed.notify_all();
    }
}

void pymtp_team_watch_quota(const char * folder) {
    get_pool();
    global_quotas->watch(folder);
}

uint32_t pymtp_team_changes(void) {
    pool & global = get_pool();
    const std::lock_guard<std::mutex> lock(global.mutex);
    return global.sizes.changes();
}

uint32_t pymtp_team_trials(void) {
    return n_trials;
}

pymtp_team_part pymtp_team_leave(void) {
    pool & global = get_pool();
    const pymtp_team_part part = { &global, current, n_held };
    if (n_held > 0) {
        const std::lock_guard<std::mutex> lock(global.mutex);
        global.n_used -= n_held;
        global.cores_freed.notify_all();
    }
    current = nullptr;
    n_held = 0;
    return part;
}

void pymtp_team_return(pymtp_team_part part) {
    pool & global = get_pool();
    if (part.pool != &global) { // this process is a child made by fork
        if (part.team) {
            std::fputs("pymtp: a child that was forked within a call cannot go on with it\n", stderr);
            std::abort();
        }
        return;
    }
    if (part.n_cores > 0) {
        const std::lock_guard<std::mutex> lock(global.mutex);
        global.n_used += part.n_cores;
    }
    current = static_cast<thread_team *>(part.team);
    n_held = part.n_cores;
}

void pymtp_team_learn_nothing(void) {
    if (current) {
        current->aborted = true;
    }
}

void pymtp_team_barrier(int n) {
    thread_team & team = *current;
    // Must be read before the last thread arrives at the barrier, because after that another graph may begin and change
    // it.
    const wait_policy & policy = team.crowded ? AT_CROWDED_BARRIER : AT_BARRIER;
    const uint32_t phase = team.phase.load(std::memory_order_relaxed);
    if (team.n_arrived.fetch_add(1, std::memory_order_acq_rel) == n - 1) {
        team.n_arrived.store(0, std::memory_order_relaxed);
        team.phase.store(phase + 1, std::memory_order_release);
        if (team.n_asleep.load(std::memory_order_relaxed) > 0) {
            pymtp_wake_all(team.phase);
        }
        return;
    }
    const double seconds = wait_while(team.phase, phase, team.n_asleep, policy);
    if (seconds > to_seconds(SHORT_WAIT)) { // shorter waits are normal, since threads have different shares
        team.stalled.fetch_add((int64_t) (1e9*seconds), std::memory_order_relaxed);
    }
}
