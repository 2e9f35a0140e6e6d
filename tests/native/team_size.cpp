// Lets team_size choose for graphs of a simulated machine, and prints what came of it.
//
// Arguments: the cores, the most threads, and 0 where the system does not say which cores are free. Each line of the input:
// processes beside, seconds of a graph with one thread, microseconds that each further thread adds, and the seconds to go on
// for. Of each it prints the number of threads at the end, the best one, the seconds until it last changed, and the work that was done as a
// share of what the best number of threads had done.
#include "team_size.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

struct machine {
    int    cores;
    int    beside;
    double work;
    double added;

    // threads that the system puts aside hold up the others
    double crowd(int n) const { return n + beside > cores ? 1 + 1.5*(n + beside - cores) : 1; }
    double alone(int n) const { return work/n + 1e-6*added*(n - 1); }
    double takes(int n) const { return alone(n)*crowd(n); }
};

int main(int argc, char ** argv) {
    if (argc != 4) {
        return 2;
    }
    machine   m      = { std::atoi(argv[1]), 0, 0, 0 };
    const int n_most = std::atoi(argv[2]);
    const bool says  = std::atoi(argv[3]);

    team_stalls stalls;
    team_size   size(n_most);
    double now = 0, seconds;
    while (std::cin >> m.beside >> m.work >> m.added >> seconds) {
        int best = 1;
        for (int n = 1; n <= n_most; ++n) {
            best = m.takes(n) < m.takes(best) ? n : best;
        }
        const double begin = now;
        double changed = 0;
        int    graphs  = 0;
        int    settled = size.choose();
        for (; now < begin + seconds; ++graphs) {
            const int    n    = size.choose();
            const double took = m.takes(n);
            now += took;
            const team_launch launch = { n, took, took, 1 - m.alone(n)/took };
            size.saw(launch, n > 1 && stalls.saw(launch), now, says ? std::max(0, m.cores - m.beside - n) : -1);
            if (!size.trying() && size.choose() != settled) {
                settled = size.choose();
                changed = now - begin;
            }
        }
        std::printf("%d %d %.3f %.3f\n", settled, best, changed, graphs*m.takes(best)/(now - begin));
    }
}
