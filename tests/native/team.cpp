// Test program for the thread pool. Computes graphs that take 3 ms in the first thread, while the second thread waits
// for the first. So the pool soon tries one thread. Each graph with one thread returns at once, like a graph that was
// aborted. Prints how many graphs had one thread, and how many graphs were counted as trials. Argument: 1 if graphs
// with one thread call pymtp_team_learn_nothing(), else 0.
#include "threads/team.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

struct graph {
    int  n;
    bool tells;
};

static void share(void * data, int i) {
    const graph & g = *static_cast<const graph *>(data);
    if (g.n == 1) {
        if (g.tells) {
            pymtp_team_learn_nothing();
        }
        return;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(i == 0 ? 3 : 0);
    while (std::chrono::steady_clock::now() < end) {
    }
    pymtp_team_barrier(g.n);
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        return 2;
    }
    int n_single = 0;
    for (int i = 0; i < 200; ++i) {
        graph g = { pymtp_team_begin(2, false, 100, 1), std::atoi(argv[1]) != 0 };
        n_single += g.n == 1;
        pymtp_team_run(g.n, share, &g);
    }
    std::printf("%d %u\n", n_single, pymtp_team_trials());
}
