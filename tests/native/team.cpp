// Lets the team compute graphs that do nothing for 3 ms, and whose second thread waits for the first one: one thread is
// tried soon. Graphs with one thread are broken off as they begin. Prints how many had one thread, and how many were
// trials that count. Argument: 1 where graphs say that they are broken off.
#include "team.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

struct graph {
    int  n;
    bool says;
};

static void share(void * data, int i) {
    const graph & g = *static_cast<const graph *>(data);
    if (g.n == 1) {
        if (g.says) {
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
