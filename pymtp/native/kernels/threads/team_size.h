// Chooses the number of threads for each kind of graph. All threads of a graph wait at each barrier for a thread that
// the system has preempted, and small graphs take less time with few threads. So another number is tried now and then,
// and the better one is kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// The measurements of one graph.
struct graph_timing {
    int    n_asked; // threads that were wanted
    int    n;       // threads that it had
    double cost;    // seconds per row; with a quota, seconds until the quota has paid for the CPU time of the row
    double seconds; // seconds for all rows
    double stalled; // the part of their time that threads waited long at barriers, on average
    double quota;   // CPU quota in cores that throttles the process, 0 if none does
};

// Sums up the stalls of graphs of all kinds, to see whether threads are preempted again and again.
class stall_window {
  public:
    // Adds a graph. At the end of a window returns the part of their time that threads stalled, if that is too much,
    // else 0.
    double add(const graph_timing & timing);

  private:
    double seconds = 0;
    double stalled = 0; // seconds of stalls
    double allowed = 0; // seconds of stalls that are not too much
    int    n       = 0; // graphs
};

// The number of threads for graphs of one kind. Times are seconds of one clock.
class team_size {
  public:
    // A trial has shown that fewer cores are available, or more.
    enum class cores_change { none, fewer, more };

    explicit team_size(int n_max = 1) : n(n_max), n_max(n_max) {}

    // Another kind of graphs has yielded cores to other programs, and now has n_new threads.
    void on_fewer(int n_new);

    // Another kind has more threads again. This one tries that at once, too.
    void on_more() { up = {}; }

    // Returns the number of threads for the next graph.
    int choose() const { return n_try ? n_try : n; }

    bool is_trial() const { return n_try > 0; }

    // Adds a graph. stalls: the result of stall_window::add(). free_cores: negative if unknown.
    cores_change add(const graph_timing & timing, double stalls, double now, double free_cores);

  private:
    // The time of the next trial. After each lost trial the wait is longer.
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
    int    n_try       = 0;            // the number of threads on trial, 0 for none
    reason why         = reason::more; // for the trial
    bool   yielded     = false;        // it has fewer threads because of other programs
    bool   small_steps = false;        // try a few more threads at a time, since twice as many were not better

    totals recent, trial;   // recent: the latest graphs without a trial
    int    n_recent    = 0; // graphs since the number changed
    double trial_began = 0;
    double quota       = 0; // quota of the last graph

    backoff down, up, small;
};

// The team sizes of the kinds of graphs that were computed lately. Not thread-safe.
class team_sizes {
  public:
    struct choice {
        int  n;
        bool trial; // n is on trial
    };

    // Returns the number of threads for a graph, n_max at most.
    choice choose(uint64_t kind, int n_max, double now);

    void add(uint64_t kind, int n_max, const graph_timing & timing, double now, double free_cores);

    // Returns how often so far graphs yielded threads to other programs, or got them back.
    uint32_t changes() const { return n_changes; }

  private:
    static constexpr size_t N_WAYS = 8; // entries that a key may be in, one after the other

    struct entry {
        uint64_t  key       = 0;
        uint64_t  last_used = 0; // n_calls at that time
        uint32_t  n_seen    = 0; // last_change.count at that time
        team_size size;
    };

    struct {
        team_size::cores_change change = team_size::cores_change::none;

        int      n     = 0;
        int      n_max = 0; // of the kinds that it is for
        double   when  = 0;
        uint32_t count = 0; // changes so far
    } last_change;

    team_size & find(uint64_t kind, int n_max, double now);

    std::array<entry, 256 + N_WAYS> entries;

    stall_window stalls;
    uint64_t     n_calls   = 0;
    uint32_t     n_changes = 0; // changes of the available cores, without those that repeat the last one
};
