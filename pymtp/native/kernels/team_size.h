// With how many threads the graphs of one kind are computed. Threads that the system puts aside hold up the others at each
// barrier, and small graphs are done sooner by few threads: another number is tried now and then, and time decides.
#pragma once

// What came of a graph. n: its threads. seconds: it took, of one row, and whole: of all. stalled: the part of the time that each
// of its threads waited for others for longer than computing explains.
struct team_launch {
    int    n;
    double seconds;
    double whole;
    double stalled;
};

// Whether threads are put aside again and again, by graphs of all kinds.
class team_stalls {
  public:
    // True where they were, over the graphs since this was last said or denied.
    bool saw(const team_launch & launch);

  private:
    double whole   = 0; // seconds
    double stalled = 0; // of them, beyond what is put up with
    int    n       = 0; // graphs
};

// Not for several threads at once. Times are seconds of one clock.
class team_size {
  public:
    explicit team_size(int n_most = 1) : n(n_most), n_most(n_most) {}

    // Another kind of graph has gone over to so many threads, because of what else computes or no longer does.
    void hear(int n_other);

    // The threads for the next graph.
    int choose() const { return n_try ? n_try : n; }

    bool trying() const { return n_try > 0; }

    // stalls: what team_stalls says with this graph. free_cores: that nothing else computes on, besides those in use; below 0
    // where the system does not say. Returns the threads of now on if what else computes, or no longer does, made it another
    // number, else 0.
    int saw(const team_launch & launch, bool stalls, double now, double free_cores);

  private:
    // A number that did not prove better is tried again after a while, each time a longer one.
    struct patience {
        double next = 0;
        double wait = 0;

        void lose(double now, double first, double most);
    };

    // Sums over graphs.
    struct sums {
        double seconds = 0;
        double whole   = 0;
        double n       = 0;

        void   add(const team_launch & launch);
        void   forget_half();
        double mean() const { return seconds/n; }
    };

    void settle(int n_now);
    void try_size(int n_other, bool small);
    int  judge(double now);

    int n;
    int n_most;
    int n_try = 0; // another number that is being tried, 0 for none
    bool is_small = false; // the graph is what it is tried for, not what else computes
    bool gave_way = false; // it has fewer for what else computes

    sums used, tried; // lately, and since the trial began

    patience down, up, small;
};
