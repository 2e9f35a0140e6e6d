// Computes graphs that take 3 ms in the first thread, while the second thread waits for it, so a trial of one thread
// begins soon. Graphs with one thread abort at once. Prints how many graphs had one thread, and how many trials
// counted. Argument: 1 if graphs tell that they were aborted (pymtp_team_learn_nothing).
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
