#include "threads/quota.h"

#include <algorithm>
#include <cstdio>

namespace {

constexpr double HOLD_SECONDS = 5; // a quota counts as active for this time after it throttled the process

// Returns the number of periods in which the control group was throttled, or -1 if the number is unknown. Both versions
// of control groups have the number in a line of cpu.stat.
long long read_throttled(const std::string & folder) {
    FILE * file = std::fopen((folder + "/cpu.stat").c_str(), "r");
    if (!file) {
        return -1;
    }
    long long throttled = -1;
    char line[128];
    while (std::fgets(line, sizeof(line), file) && std::sscanf(line, "nr_throttled %lld", &throttled) != 1) {
    }
    std::fclose(file);
    return throttled;
}

// Reads up to two numbers from a file. Returns how many numbers it read.
int read_numbers(const std::string & name, double * first, double * second) {
    FILE * file = std::fopen(name.c_str(), "r");
    const int n = file ? std::fscanf(file, "%lf %lf", first, second) : 0;
    if (file) {
        std::fclose(file);
    }
    return n;
}

// Returns the quota of the control group in cores, or 0 or less if the group has no quota.
double read_quota(const std::string & folder) {
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
        groups.push_back({ folder, read_quota(folder) > 0 ? read_throttled(folder) : -1 });
    }
}

double cpu_quotas::active_quota(double now) {
    const std::lock_guard<std::mutex> guard(mutex);
    double lowest = 0;
    for (group & g : groups) {
        const double quota = read_quota(g.folder);
        // cpu.stat is read only for groups with a quota, because the system takes longer to make it than the other
        // files.
        const long long throttled = quota > 0 ? read_throttled(g.folder) : -1;
        if (throttled > g.throttled && g.throttled >= 0) {
            g.quota  = quota;
            g.hit_at = now;
        }
        g.throttled = throttled;
        if (g.quota > 0 && now - g.hit_at <= HOLD_SECONDS && (lowest == 0 || g.quota < lowest)) {
            lowest = g.quota;
        }
    }
    return lowest;
}
