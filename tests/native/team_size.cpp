// Test program for team_sizes. Simulates graphs on a machine, and prints the numbers of threads that team_sizes
// chooses.
//
// Arguments: the number of cores; 1 if the system reports how many cores are free, else 0; and the relative random
// error of all times (0.1: up to 10% more or less). Each line of the input has the number of other busy processes, a
// CPU quota in cores (0 for none), the seconds to simulate, and the kinds of graphs, which are computed in turn. A kind
// has four numbers: the number of graphs in a row, the largest number of threads, the seconds of a graph with one
// thread, and the microseconds that each further thread adds. For each line, the program prints how many times kinds of
// graphs yielded threads or got threads back, and the time with the best numbers of threads divided by the actual time.
// Then it prints for each kind: the number of threads at the end, the best number of threads, and the seconds until the
// number of threads last changed.
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
    int    n_others; // number of other busy processes, each on one core
    double quota;

    // Returns the factor by which a graph with n threads slows down, because all its threads wait for preempted
    // threads.
    double preemption(int n) const { return n + n_others > cores ? 1 + 1.5*(n + n_others - cores) : 1; }

    double slowdown(int n) const { return std::max(preemption(n), quota > 0 ? n/quota : 0); }

    // State of the quota: the number of the current period, the CPU seconds used in that period, and the time at which
    // the quota last throttled the process.
    double period = 0, used = 0, throttled_at = -100;

    // Returns the seconds on the clock in which n threads compute for `busy` seconds each. The quota limits the CPU
    // time in each period of 0.1 s.
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
            if (left < end - now) { // the quota stops all threads until the next period
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

    // Returns the seconds that a graph takes with n threads on a machine without other processes.
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
