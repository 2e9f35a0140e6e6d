// Lets team_sizes choose for graphs of a simulated machine, and prints its choices.
//
// Arguments: the cores, 0 where the system does not say which cores are free, and by how much times scatter (0.1: a tenth).
// Each line of the input: processes beside, the seconds to go on for, and the kinds of graphs that follow each other, each as
// four numbers: how many in a row, the most threads, seconds with one thread, and microseconds that each further thread adds.
// Of each line it prints how often threads were taken away or given back, the share of the work that the best numbers of
// threads had done, and of each kind the threads at the end, the best number, and the seconds until it last changed.
#include "team_size.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

struct machine {
    int    cores;
    int    beside;

    // threads that the system puts aside hold up the others
    double crowd(int n) const { return n + beside > cores ? 1 + 1.5*(n + beside - cores) : 1; }
};

struct graphs {
    int    in_a_row, n_most;
    double work, added;

    int    best = 1, settled = 0;
    double changed = 0;

    double alone(int n) const { return work/n + 1e-6*added*(n - 1); }
};

int main(int argc, char ** argv) {
    if (argc != 4) {
        return 2;
    }
    machine      m       = { std::atoi(argv[1]), 0 };
    const bool   says    = std::atoi(argv[2]);
    const double scatter = std::atof(argv[3]);

    auto     sizes = std::make_unique<team_sizes>();
    double   now   = 1000;
    uint32_t luck  = 1;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        double seconds;
        std::vector<graphs> kinds;
        words >> m.beside >> seconds;
        for (graphs g; words >> g.in_a_row >> g.n_most >> g.work >> g.added; kinds.push_back(g)) {
            g.best = 1;
            for (int n = 1; n <= g.n_most; ++n) {
                g.best = g.alone(n)*m.crowd(n) < g.alone(g.best)*m.crowd(g.best) ? n : g.best;
            }
        }
        const double   begin   = now;
        const uint32_t changes = sizes->changes();
        double best = 0;
        while (now < begin + seconds) {
            for (graphs & g : kinds) {
                for (int i = 0; i < g.in_a_row; ++i) {
                    const auto   kind   = (uint64_t) (1e9*g.work);
                    const auto   chosen = sizes->choose(kind, g.n_most, now);
                    const int    n      = chosen.n;
                    luck = 1664525*luck + 1013904223;
                    const double took   = g.alone(n)*m.crowd(n)*(1 + scatter*((luck >> 8)/8388608.0 - 1));
                    now  += took;
                    best += g.alone(g.best)*m.crowd(g.best);
                    if (!chosen.trial && n != g.settled) {
                        g.changed = g.settled ? now - begin : 0;
                        g.settled = n;
                    }
                    const double free_cores = says ? std::max(0, m.cores - m.beside - n) : -1;
                    sizes->saw(kind, g.n_most, { n, n, took, took, std::max(0.0, 1 - g.alone(n)/took) }, now, free_cores);
                }
            }
        }
        std::printf("%u %.3f", sizes->changes() - changes, best/(now - begin));
        for (const graphs & g : kinds) {
            std::printf(" %d %d %.3f", g.settled, g.best, g.changed);
        }
        std::printf("\n");
    }
}
