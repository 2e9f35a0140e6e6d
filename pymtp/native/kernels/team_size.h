// With how many threads the graphs of one kind are computed. Threads that the system puts aside hold up the others at each
// barrier, and small graphs are done sooner by few threads: another number is tried now and then, and time decides.
#pragma once

// What came of a graph. n: its threads. seconds: it took, of one row. stalled: the part of the time that each of its threads
// waited for others for longer than computing explains.
struct team_launch {
    int    n;
    double seconds;
    double stalled;
};

// Not for several threads at once. Times are seconds of one clock.
class team_size {
  public:
    explicit team_size(int n_most = 1) : n(n_most), n_most(n_most) {}

    // The threads for the next graph.
    int choose() const { return n_try ? n_try : n; }

    // whole: seconds of the graph, all rows. free_cores: that nothing else computes on, besides those in use; below 0 where the
    // system does not say.
    void saw(const team_launch & launch, double whole, double now, double free_cores);

  private:
    // A number that did not prove better is tried again after a while, each time a longer one.
    struct patience {
        double next = 0;
        double wait = 0;

        void lose(double now, double first, double most);
    };

    void settle(int n_now);
    void try_size(int n_other);
    void judge(double now);
    void look_down(const team_launch & launch, double whole, double now);

    int n;
    int n_most;
    int n_try = 0; // another number that is being tried, 0 for none

    double seconds = 0; // of a row with n threads, lately; 0: not known

    double tried_seconds = 0; // sums over the graphs of a trial
    double tried_whole   = 0;
    int    n_tried       = 0;

    double window         = 0; // seconds since stalls were last looked at
    double window_stalled = 0;
    int    n_window       = 0;

    patience down, up, small;
};
