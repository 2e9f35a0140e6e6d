#include "team.h"

#include "free_cores.h"
#include "quota.h"
#include "sleep.h"
#include "team_size.h"

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
#include <signal.h>
#endif

namespace {

using team_clock = std::chrono::steady_clock;

// How a thread waits. It looks. Then it lets others have its core, for one of those it waits for may be there, and
// looks on, each time longer: Linux takes each yield from its share, and gives it even to programs that are to come
// last (nice 19). Then it sleeps. Another program takes the core of a thread that sleeps, and keeps it for some ms; and
// to be woken takes 20 to 100 us.
struct wait_kind {
    std::chrono::microseconds looks;  // the first time
    std::chrono::microseconds yields; // the last time by then
    int                       sleep;  // us at most, for nobody looks who is about to sleep. 0: until it is woken
};

constexpr std::chrono::microseconds NONE(0), SHORT(40), LONGER_THAN_A_SLICE(10000);

constexpr wait_kind AT_BARRIER = { SHORT, LONGER_THAN_A_SLICE, 1000 };
constexpr wait_kind IN_A_CROWD = { NONE,  NONE,                1000 }; // more threads than cores: none is to look
constexpr wait_kind FOR_WORK   = { std::chrono::microseconds(500), NONE, 0 };

constexpr int LOOKS_PER_CLOCK = 32;
constexpr int LOOKS_LONGER    = 4; // times

constexpr double LOOKS_AT_CORES = 0.1; // seconds

double seconds_of(team_clock::duration time) {
    return std::chrono::duration<double>(time).count();
}

// Seconds that this thread has computed; 0 where the system does not say.
double seconds_computed() {
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

// Returns when the word is not `value` any more, with about the seconds that it took, 0 for a moment.
double wait_while(std::atomic<uint32_t> & word, uint32_t value, std::atomic<int> & n_asleep, const wait_kind & kind) {
    const auto changed = [&] {
        for (int i = 0; i < LOOKS_PER_CLOCK; ++i) {
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
    auto       now   = begin;
    auto       looks = kind.looks;
    while (!changed()) {
        now = team_clock::now();
        if (now - begin <= looks) {
            continue;
        }
        if (now - begin <= kind.yields) {
            std::this_thread::yield();
            looks *= LOOKS_LONGER;
            now   = team_clock::now();
        } else {
            n_asleep.fetch_add(1);
            while (word.load() == value) {
                pymtp_sleep_while(word, value, kind.sleep);
            }
            n_asleep.fetch_sub(1);
            now = team_clock::now();
            break;
        }
    }
    return seconds_of(now - begin);
}

void change(std::atomic<uint32_t> & word, std::atomic<int> & n_asleep) {
    word.fetch_add(1);
    if (n_asleep.load() > 0) {
        pymtp_wake_all(word);
    }
}

struct crew;

struct worker {
    alignas(64) std::atomic<uint32_t> bell{0}; // changes when there is work
    std::atomic<int>                  n_asleep{0};
};

// Threads that compute one graph together. It is never freed: a thread may leave a barrier when the next graph has begun.
struct crew {
    void (*share)(void *, int) = nullptr;
    void * data = nullptr;

    std::vector<std::unique_ptr<worker>> workers;

    alignas(64) std::atomic<int>      n_arrived{0};
    alignas(64) std::atomic<uint32_t> phase{0}; // changes when all arrived
    std::atomic<int>                  n_asleep{0};
    std::atomic<int64_t>              stalled{0}; // nanoseconds of the graph

    bool                   every    = false; // all threads that were asked for
    bool                   trial    = false; // of another number of threads
    bool                   broken   = false; // off
    bool                   crowded  = false;
    uint64_t               kind     = 0;
    int64_t                n_rows   = 1;
    int                    asked    = 0;
    int                    n        = 0;
    int                    n_most   = 0;
    double                 quota    = 0; // cores, of a bound on processor time that is met; 0 for none
    double                 computed = 0; // seconds that the first thread had when the graph began; within a quota
    team_clock::time_point begin;
};

thread_local crew * current = nullptr;

void work(crew * team, worker * self, int i) {
    current = team;
    for (uint32_t seen = 0;; ++seen) {
        wait_while(self->bell, seen, self->n_asleep, FOR_WORK);
        team->share(team->data, i);
    }
}

// Whether the system gave one more. Signals are for the threads of who uses this library, but for faults of its own.
bool start_thread(crew & team) {
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    for (int fault : { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS }) {
        sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    const size_t before_this = team.workers.size();
    bool started = true;
    try {
        team.workers.push_back(std::make_unique<worker>());
        std::thread(work, &team, team.workers.back().get(), (int) team.workers.size()).detach();
    } catch (const std::exception &) { // no thread, or no memory for one
        team.workers.resize(before_this);
        started = false;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    return started;
}

// That this process may use.
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
    std::condition_variable freed;
    std::deque<uint64_t>    turns;    // of those who wait
    uint64_t                next = 0;
    int                     n_cores = count_cores();
    int                     n_used  = 0;
    std::vector<crew *>     free;
    size_t                  n_crews = 0; // free has room for as many
    double                  looked     = 0; // when free_cores was
    double                  free_cores = -1;
    double                  quota = 0; // cores, of a bound on processor time; 0 for none that was met lately
    team_sizes              sizes;
};

pool *       the_pool   = nullptr;
cpu_quotas * the_quotas = nullptr;

// A child made by fork has none of the threads.
pool & find_pool() {
    static const bool made = [] {
        the_pool   = new pool;
        the_quotas = new cpu_quotas;
#ifndef _WIN32
        pthread_atfork([] { the_quotas->lock(); }, [] { the_quotas->unlock(); }, [] {
            the_quotas->unlock();
            the_pool = new pool;
            current  = nullptr;
        });
#endif
        return true;
    }();
    (void) made;
    return *the_pool;
}

// Graphs of one kind take about the same time for a row.
uint64_t kind_of(int n_nodes, int64_t n_rows) {
    int64_t most = 1; // rows of the kind: each number of few, then twice as many
    while (most < n_rows) {
        most += most < 16 ? 1 : most;
    }
    return 1000003ull*n_nodes + most;
}

thread_local int      n_taken  = 0; // cores, by the graph of this thread
thread_local uint32_t n_trials = 0; // graphs of this thread

} // namespace

int pymtp_team_begin(int n_asked, bool every, int n_nodes, int64_t n_rows) {
    const uint64_t kind = kind_of(n_nodes, n_rows);
    pool & all = find_pool();
    std::unique_lock<std::mutex> lock(all.mutex);
    const int n_most = every ? n_asked : std::min(n_asked, all.n_cores);
    team_sizes::choice chosen = { n_most, false };
    if (!every && n_most > 1) {
        chosen = all.sizes.choose(kind, n_most, seconds_of(team_clock::now().time_since_epoch()));
    }
    const int n = chosen.n;
    n_taken = std::min(n, all.n_cores);
    if (!all.turns.empty() || all.n_used + n_taken > all.n_cores) {
        const uint64_t turn = all.next++;
        all.turns.push_back(turn);
        all.freed.wait(lock, [&] { return all.turns.front() == turn && all.n_used + n_taken <= all.n_cores; });
        all.turns.pop_front();
        all.freed.notify_all();
    }
    if (n_most == 1) {
        all.n_used += n_taken;
        current = nullptr;
        return 1;
    }
    if (all.free.empty()) {
        all.free.reserve(all.n_crews + 1);
        all.free.push_back(new crew);
        all.n_crews++;
    }
    current = all.free.back();
    all.free.pop_back();
    all.n_used += n_taken;
    const double quota = all.quota;
    lock.unlock();
    while ((int) current->workers.size() < n - 1 && start_thread(*current)) {
    }
    current->every  = every;
    current->trial  = chosen.trial;
    current->broken = false;
    current->asked  = n;
    current->kind   = kind;
    current->n_rows = std::max<int64_t>(1, n_rows);
    current->n      = std::min(n, 1 + (int) current->workers.size());
    current->n_most = n_most;
    current->begin  = team_clock::now();
    current->quota    = quota;
    current->computed = quota > 0 ? seconds_computed() : 0;
    current->crowded  = n > all.n_cores;
    current->stalled.store(0, std::memory_order_relaxed);
    return current->n;
}

void pymtp_team_run(int n, void (*share)(void *, int), void * data) {
    crew * team = current;
    if (team) {
        team->share = share;
        team->data  = data;
        for (int i = 0; i < n - 1; ++i) {
            change(team->workers[i]->bell, team->workers[i]->n_asleep);
        }
    }
    share(data, 0);

    pool & all = find_pool();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.n_used -= n_taken;
    n_taken = 0;
    if (team) {
        const auto   now     = team_clock::now();
        const double seconds = seconds_of(now.time_since_epoch());
        const double whole   = seconds_of(now - team->begin);
        if (seconds - all.looked > LOOKS_AT_CORES) {
            all.looked     = seconds;
            all.free_cores = pymtp_free_cores();
            all.quota      = the_quotas->met(seconds);
        }
        if (!team->every && !team->broken) {
            const double waited = 1e-9*team->stalled.load(std::memory_order_relaxed); // all threads together
            // Threads that have used up a quota are all stopped, whatever graph is computed then.
            const double cost = team->quota > 0
                ? (seconds_computed() - team->computed)*std::max(1.0, team->n/team->quota) : whole;
            const double stalled = team->n > 1 ? waited/((team->n - 1)*whole) : 0;
            const team_launch launch = { team->asked, team->n, cost/team->n_rows, whole, stalled, team->quota };
            all.sizes.saw(team->kind, team->n_most, launch, seconds, all.free_cores);
            n_trials += team->trial;
        }
        all.free.push_back(team);
        current = nullptr;
    }
    if (!all.turns.empty()) {
        all.freed.notify_all();
    }
}

void pymtp_team_watch_quota(const char * folder) {
    find_pool();
    the_quotas->watch(folder);
}

uint32_t pymtp_team_changes(void) {
    pool & all = find_pool();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.sizes.changes();
}

uint32_t pymtp_team_trials(void) {
    return n_trials;
}

pymtp_team_part pymtp_team_leave(void) {
    pool & all = find_pool();
    const pymtp_team_part part = { &all, current, n_taken };
    if (n_taken > 0) {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.n_used -= n_taken;
        all.freed.notify_all();
    }
    current = nullptr;
    n_taken = 0;
    return part;
}

void pymtp_team_return(pymtp_team_part part) {
    pool & all = find_pool();
    if (part.pool != &all) { // a child made by fork
        if (part.crew) {
            std::fputs("pymtp: a child that was forked within a call cannot go on with it\n", stderr);
            std::abort();
        }
        return;
    }
    if (part.n_cores > 0) {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.n_used += part.n_cores;
    }
    current = static_cast<crew *>(part.crew);
    n_taken = part.n_cores;
}

void pymtp_team_learn_nothing(void) {
    if (current) {
        current->broken = true;
    }
}

void pymtp_team_barrier(int n) {
    crew & team = *current;
    const wait_kind & kind = team.crowded ? IN_A_CROWD : AT_BARRIER; // once all have arrived, another graph may begin
    const uint32_t phase = team.phase.load(std::memory_order_relaxed);
    if (team.n_arrived.fetch_add(1, std::memory_order_acq_rel) == n - 1) {
        team.n_arrived.store(0, std::memory_order_relaxed);
        team.phase.store(phase + 1, std::memory_order_release);
        if (team.n_asleep.load(std::memory_order_relaxed) > 0) {
            pymtp_wake_all(team.phase);
        }
        return;
    }
    const double seconds = wait_while(team.phase, phase, team.n_asleep, kind);
    if (seconds > seconds_of(SHORT)) { // shares of a node differ by less
        team.stalled.fetch_add((int64_t) (1e9*seconds), std::memory_order_relaxed);
    }
}
