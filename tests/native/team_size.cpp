// Runs team_sizes on graphs of a simulated machine, and prints its choices.
//
// Arguments: the number of cores; 1 if the system tells how many cores are free, else 0; and by how much times scatter
// (0.1: a tenth). Each line of the input has the number of other busy processes, a CPU quota in cores (0 for none), the
// seconds to simulate, and the kinds of graphs, which follow each other. A kind has four numbers: how many graphs in a
// row, the largest number of threads, seconds with one thread, and microseconds that each further thread adds. For each
// line the program prints how often graphs yielded threads or got them back, and the time that the best numbers of
// threads would take divided by the actual time. For each kind it prints the number of threads at the end, the best
// number, and the seconds until it last changed.
#include "threads/team_size.h"

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
    int    n_others; // busy processes
    double quota;

    // The factor by which preempted threads, which all threads wait for, slow down a graph.
    double preemption(int n) const { return n + n_others > cores ? 1 + 1.5*(n + n_others - cores) : 1; }

    double slowdown(int n) const { return std::max(preemption(n), quota > 0 ? n/quota : 0); }

    // of the quota: number of the period, CPU seconds used in it, and when it last throttled
    double period = 0, used = 0, throttled_at = -100;

    // Returns the seconds that n threads take to compute for `busy` seconds each, with a quota for each period of 0.1
    // s.
    double run(int n, double busy, double now) {
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
            if (left < end - now) { // the quota stops all threads
                throttled_at = now + left;
                busy        -= left;
            } else {
                busy -= end - now;
            }
            now = end;
        }
        return busy;
    }
};

struct graphs {
    int    in_a_row, n_max;
    double work, added;

    int    best = 1, chosen = 0;
    double changed = 0;

    // seconds with n threads on a machine without other processes
    double idle_seconds(int n) const { return work/n + 1e-6*added*(n - 1); }
};

int main(int argc, char ** argv) {
    if (argc != 4) {
        return 2;
    }
    machine      m       = { std::atoi(argv[1]), 0, 0 };
    const bool   tells   = std::atoi(argv[2]);
    const double scatter = std::atof(argv[3]);

    auto     sizes  = std::make_unique<team_sizes>();
    double   now    = 1000;
    uint32_t random = 1;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        double seconds;
        std::vector<graphs> kinds;
        words >> m.n_others >> m.quota >> seconds;
        for (graphs g; words >> g.in_a_row >> g.n_max >> g.work >> g.added; kinds.push_back(g)) {
            g.best = 1;
            for (int n = 1; n <= g.n_max; ++n) {
                g.best = g.idle_seconds(n)*m.slowdown(n) < g.idle_seconds(g.best)*m.slowdown(g.best) ? n : g.best;
            }
        }
        const double   begin   = now;
        const uint32_t changes = sizes->changes();
        double best = 0;
        while (now < begin + seconds) {
            for (graphs & g : kinds) {
                for (int i = 0; i < g.in_a_row; ++i) {
                    const auto kind   = (uint64_t) (1e9*g.work);
                    const auto chosen = sizes->choose(kind, g.n_max, now);
                    const int  n      = chosen.n;
                    random = 1664525*random + 1013904223;
                    const double noise = 1 + scatter*((random >> 8)/8388608.0 - 1);
                    const double busy  = g.idle_seconds(n)*m.preemption(n)*noise;
                    const double time  = m.run(n, busy, now);
                    now  += time;
                    best += g.idle_seconds(g.best)*m.slowdown(g.best);
                    if (!chosen.trial && n != g.chosen) {
                        g.changed = g.chosen ? now - begin : 0;
                        g.chosen  = n;
                    }
                    const double free_cores = tells ? std::max(0, m.cores - m.n_others - n) : -1;
                    const double quota      = now - m.throttled_at < 5 ? m.quota : 0;
                    const double cost       = quota > 0 ? busy*std::max(1.0, n/quota) : time;
                    const double stalled    = std::max(0.0, 1 - g.idle_seconds(n)/busy);
                    sizes->add(kind, g.n_max, { n, n, cost, time, stalled, quota }, now, free_cores);
                }
            }
        }
        std::printf("%u %.3f", sizes->changes() - changes, best/(now - begin));
        for (const graphs & g : kinds) {
            std::printf(" %d %d %.3f", g.chosen, g.best, g.changed);
        }
        std::printf("\n");
    }
}
