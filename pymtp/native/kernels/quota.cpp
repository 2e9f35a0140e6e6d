#include "quota.h"

#include <algorithm>
#include <cstdio>

namespace {

constexpr double MINDED = 5; // seconds after a bound was met

// The periods in which the group was stopped: a line of cpu.stat in both versions of control groups. -1: nobody knows.
long long count_stops(const std::string & folder) {
    FILE * file = std::fopen((folder + "/cpu.stat").c_str(), "r");
    if (!file) {
        return -1;
    }
    long long stops = -1;
    char line[128];
    while (std::fgets(line, sizeof(line), file) && std::sscanf(line, "nr_throttled %lld", &stops) != 1) {
    }
    std::fclose(file);
    return stops;
}

// Numbers of a file; returns how many there were.
int read_numbers(const std::string & name, double * first, double * second) {
    FILE * file = std::fopen(name.c_str(), "r");
    const int n = file ? std::fscanf(file, "%lf %lf", first, second) : 0;
    if (file) {
        std::fclose(file);
    }
    return n;
}

// The cores whose time the group has now; 0 or less for no bound.
double read_cores(const std::string & folder) {
    double quota = 0, period = 0, none = 0;
    if (read_numbers(folder + "/cpu.max", &quota, &period) == 2 ||
            (read_numbers(folder + "/cpu.cfs_quota_us", &quota, &none) == 1 &&
             read_numbers(folder + "/cpu.cfs_period_us", &period, &none) == 1)) {
        return period > 0 ? quota/period : 0;
    }
    return 0;
}

} // namespace

void cpu_quotas::watch(const std::string & folder) {
    const std::lock_guard<std::mutex> guard(mutex);
    if (std::none_of(groups.begin(), groups.end(), [&](const group & g) { return g.folder == folder; })) {
        groups.push_back({ folder, read_cores(folder) > 0 ? count_stops(folder) : -1 });
    }
}

double cpu_quotas::met(double now) {
    const std::lock_guard<std::mutex> guard(mutex);
    double least = 0;
    for (group & g : groups) {
        const double    cores = read_cores(g.folder);
        const long long stops = cores > 0 ? count_stops(g.folder) : -1; // which takes the system longer
        if (stops > g.stops && g.stops >= 0) {
            g.cores = cores;
            g.when  = now;
        }
        g.stops = stops;
        if (g.cores > 0 && now - g.when <= MINDED && (least == 0 || g.cores < least)) {
            least = g.cores;
        }
    }
    return least;
}
