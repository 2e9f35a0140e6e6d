// Lets team_sizes choose for graphs of a simulated machine, and prints its choices.
//
// Arguments: the cores, 0 where the system does not say which cores are free, and by how much times scatter (0.1: a
// tenth). Each line of the input: processes beside, cores of a bound on processor time (0 for none), the seconds to go
// on for, and the kinds of graphs that follow each other, each as four numbers: how many in a row, the most threads,
// seconds with one thread, and microseconds that each further thread adds. Of each line it prints how often threads
// were taken away or given back, the share of the work that the best numbers of threads had done, and of each kind the
// threads at the end, the best number, and the seconds until it last changed.
#include "team_size.h"

#include <algorithm>
#include <cmath>
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
    double quota;

    // threads that the system puts aside hold up the others
    double crowd(int n) const { return n + beside > cores ? 1 + 1.5*(n + beside - cores) : 1; }

    double slower(int n) const { return std::max(crowd(n), quota > 0 ? n/quota : 0); }

    double period = 0, used = 0, stopped = -100; // of the bound: its period's number, seconds used, when it was met

    // How long n threads take that compute for so long: each period of 0.1 s has a part of it.
    double take(int n, double busy, double now) {
        const double begin = now;
        while (quota > 0) {
            const double current = std::floor(10*now + 1e-6);
            if (current != period) {
                period = current;
                used   = 0;
            }
            const double end  = (period + 1)/10;
            const double left = (0.1*quota - used)/n;
            if (busy <= std::min(left, end - now)) {
                used += n*busy;
                return now + busy - begin;
            }
            if (left < end - now) { // all threads are stopped
                stopped = now + left;
                busy   -= left;
            } else {
                busy -= end - now;
            }
            now = end;
        }
        return busy;
    }
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
    machine      m       = { std::atoi(argv[1]), 0, 0 };
    const bool   says    = std::atoi(argv[2]);
    const double scatter = std::atof(argv[3]);

    auto     sizes = std::make_unique<team_sizes>();
    double   now   = 1000;
    uint32_t luck  = 1;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        double seconds;
        std::vector<graphs> kinds;
        words >> m.beside >> m.quota >> seconds;
        for (graphs g; words >> g.in_a_row >> g.n_most >> g.work >> g.added; kinds.push_back(g)) {
            g.best = 1;
            for (int n = 1; n <= g.n_most; ++n) {
                g.best = g.alone(n)*m.slower(n) < g.alone(g.best)*m.slower(g.best) ? n : g.best;
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
                    const double busy   = g.alone(n)*m.crowd(n)*(1 + scatter*((luck >> 8)/8388608.0 - 1));
                    const double took   = m.take(n, busy, now);
                    now  += took;
                    best += g.alone(g.best)*m.slower(g.best);
                    if (!chosen.trial && n != g.settled) {
                        g.changed = g.settled ? now - begin : 0;
                        g.settled = n;
                    }
                    const double free_cores = says ? std::max(0, m.cores - m.beside - n) : -1;
                    const double quota   = now - m.stopped < 5 ? m.quota : 0;
                    const double cost    = quota > 0 ? busy*std::max(1.0, n/quota) : took;
                    const double stalled = std::max(0.0, 1 - g.alone(n)/busy);
                    sizes->saw(kind, g.n_most, { n, n, cost, took, stalled, quota }, now, free_cores);
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
