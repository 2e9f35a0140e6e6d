// The number of threads that graphs of each kind are computed with. Threads that the system puts aside hold up the
// others at each barrier, and small graphs are done sooner by few threads: another number is tried now and then, and time
// decides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// A graph that was computed.
struct team_launch {
    int    asked;   // threads
    int    n;       // threads that it had
    double cost;    // seconds for one row; within a quota, of that
    double whole;   // seconds for all rows
    double stalled; // part of the time that each thread waited for others, where it waited long
    double quota;   // cores, of a bound on processor time that the process meets; 0 for none
};

// Whether threads are put aside again and again, by graphs of all kinds.
class team_stalls {
  public:
    // The part of the time that each waited, where it is too much, over the graphs since this was last told; else 0.
    double saw(const team_launch & launch);

  private:
    double whole   = 0; // seconds
    double stalled = 0; // of them
    double allowed = 0; // of them, to be put up with
    int    n       = 0; // graphs
};

// The threads for graphs of one kind. Times are seconds of one clock.
class team_size {
  public:
    enum class told { nothing, fewer, more }; // by a trial: cores that are to be had

    explicit team_size(int n_most = 1) : n(n_most), n_most(n_most) {}

    // Another kind of graphs has given way to other programs, and goes on with so many threads.
    void hear_fewer(int n_other);

    // Another kind has more again: this one tries so at once.
    void hear_more() { up = {}; }

    // The threads for the next graph.
    int choose() const { return n_try ? n_try : n; }

    bool trying() const { return n_try > 0; }

    // stalls: as team_stalls tells them with this graph. free_cores: on which nothing computes; below 0 where the
    // system does not say.
    told saw(const team_launch & launch, double stalls, double now, double free_cores);

  private:
    // A number that did not prove better is tried again after a while, each time a longer one.
    struct patience {
        double next = 0;
        double wait = 0;

        void lose(double now, double first, double most);
    };

    // Sums over graphs.
    struct sums {
        double cost  = 0;
        double whole = 0;
        double n     = 0;

        void   add(const team_launch & launch);
        void   forget_half();
        double mean() const { return cost/n; }
    };

    enum class reason { more, stalls, quota, small };

    void settle(int n_now);
    void try_size(int n_other, reason why, double now);
    told judge(double now);

    int n;
    int n_most;
    int n_try = 0; // another number that is being tried, 0 for none
    reason why = reason::more; // for
    bool gave_way = false; // other programs are why it has fewer
    bool in_steps = false; // more threads are tried a few at a time: twice as many were not better

    sums   used, tried; // lately, and since the trial began
    int    n_used = 0;  // graphs since the number changed
    double began  = 0;  // the trial
    double quota  = 0;  // that the last graph was computed within

    patience down, up, small;
};

// The sizes for kinds of graphs: those that were computed lately. Not for several threads at once.
class team_sizes {
  public:
    struct choice {
        int  n;
        bool trial; // whether that is another number than the best one known
    };

    // The threads for a graph, n_most at most.
    choice choose(uint64_t kind, int n_most, double now);

    void saw(uint64_t kind, int n_most, const team_launch & launch, double now, double free_cores);

    // How often other programs took threads away, or gave them back, so far.
    uint32_t changes() const { return n_changes; }

  private:
    static constexpr size_t PLACES = 8; // of a kind, one beside the other

    struct entry {
        uint64_t  kind  = 0;
        uint64_t  used  = 0; // when, in launches
        uint32_t  heard = 0; // of the news
        team_size size;
    };

    struct {
        team_size::told what   = team_size::told::nothing;
        int             n      = 0;
        int             n_most = 0; // of those whom it is for
        double          when   = 0;
        uint32_t        number = 0;
    } news;

    team_size & of(uint64_t kind, int n_most, double now);

    std::array<entry, 256 + PLACES> entries;

    team_stalls stalls;
    uint64_t    n_asked   = 0;
    uint32_t    n_changes = 0;
};
