// Chooses the number of threads for each kind of graph. More threads are not always faster: if the system preempts one
// thread, all other threads of the graph wait for it at the next barrier, and small graphs take less time with few
// threads. So another number of threads is tried now and then, and the better number is kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// The measurements of one graph.
struct graph_timing {
    int    n_asked; // number of threads that were asked for
    int    n;       // number of threads that computed the graph
    double cost;    // seconds per row; with a quota, the seconds in which the quota grants the row's CPU time
    double seconds; // seconds on the clock for all rows
    double stalled; // the part of the threads' time that was spent in long waits at barriers, on average
    double quota;   // the CPU quota, in cores, that throttles the process; 0 if none does
};

// Sums up the stalls (long waits at barriers) of graphs of all kinds, to see whether threads are preempted again and
// again.
class stall_window {
  public:
    // Adds a graph. If this ends a window, and threads stalled for too large a part of their time in it, returns that
    // part; else returns 0.
    double add(const graph_timing & timing);

  private:
    double seconds = 0;
    double stalled = 0; // seconds that threads stalled, on average
    double allowed = 0; // seconds above which `stalled` is too much
    int    n       = 0; // number of graphs in the window
};

// Chooses the number of threads for graphs of one kind. All times `now` are seconds of the same clock.
class team_size {
  public:
    // The result of a trial that other kinds of graphs should know: fewer or more cores are available.
    enum class cores_change { none, fewer, more };

    explicit team_size(int n_max = 1) : n(n_max), n_max(n_max) {}

    // Must be called when another kind of graphs has yielded cores to other programs, and now has n_new threads. This
    // kind then has at most n_new threads, too.
    void on_fewer(int n_new);

    // Must be called when another kind of graphs has more threads again. This kind then tries more threads without a
    // wait.
    void on_more() { up = {}; }

    // Returns the number of threads for the next graph.
    int choose() const { return n_try ? n_try : n; }

    // Returns whether the next graph is a trial of another number of threads.
    bool is_trial() const { return n_try > 0; }

    // Adds the times of a graph, which may start or end a trial. stalls: the result of stall_window::add(). free_cores:
    // number of free cores, negative if unknown.
    cores_change add(const graph_timing & timing, double stalls, double now, double free_cores);

  private:
    // The time of the next trial. Each lost trial makes the wait for the next one longer.
    struct backoff {
        double next = 0;
        double wait = 0;

        void extend(double now, double first, double max);
    };

    // Sums over graphs.
    struct totals {
        double cost    = 0;
        double seconds = 0;
        double n       = 0;

        void   add(const graph_timing & timing);
        void   halve();
        double mean() const { return cost/n; }
    };

    enum class reason { more, stalls, quota, small };

    void set_size(int n_now);
    void start_trial(int n_new, reason why, double now);
    cores_change end_trial(double now);

    int n;
    int n_max;
    int    n_try       = 0;            // the number of threads on trial, 0 without a trial
    reason why         = reason::more; // the reason for the trial
    bool   yielded     = false;        // the kind has fewer threads because of other programs
    bool   small_steps = false;        // try a few more threads at a time, since twice as many were not better

    totals recent, trial;   // sums over the latest graphs without trials, and over the trial's graphs
    int    n_recent    = 0; // number of graphs since the number of threads changed
    double trial_began = 0;
    double quota       = 0; // the quota during the last graph

    backoff down, up, small;
};

// Chooses the number of threads for all kinds of graphs that were computed lately. Not thread-safe.
class team_sizes {
  public:
    struct choice {
        int  n;
        bool trial; // n is a trial of another number of threads
    };

    // Returns the number of threads for a graph, at most n_max.
    choice choose(uint64_t kind, int n_max, double now);

    // Adds the times of a graph. free_cores: number of free cores, negative if unknown.
    void add(uint64_t kind, int n_max, const graph_timing & timing, double now, double free_cores);

    // Returns how many times so far kinds of graphs have yielded threads to other programs, or got threads back.
    uint32_t changes() const { return n_changes; }

  private:
    static constexpr size_t N_WAYS = 8; // number of adjacent entries in which a key may be

    struct entry {
        uint64_t  key       = 0;
        uint64_t  last_used = 0; // n_calls when the entry was last used
        uint32_t  n_seen    = 0; // last_change.count when the entry last followed a change
        team_size size;
    };

    struct {
        team_size::cores_change change = team_size::cores_change::none;

        int      n     = 0;
        int      n_max = 0; // the n_max of the kinds of graphs that should follow the change
        double   when  = 0;
        uint32_t count = 0; // number of changes so far
    } last_change;

    team_size & find(uint64_t kind, int n_max, double now);

    std::array<entry, 256 + N_WAYS> entries;

    stall_window stalls;
    uint64_t     n_calls   = 0;
    uint32_t     n_changes = 0; // number of changes of the available cores, without repetitions of the last one
};
