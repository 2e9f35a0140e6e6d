#include "threads/free_cores.h"

#ifdef __linux__
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <unistd.h>

#include <chrono>

// Reads /proc/stat. It has a line for each processor, with the ticks that the processor spent in user, nice, system,
// idle, iowait, …
double pymtp_free_cores() {
    static long long last = -1;
    static std::chrono::steady_clock::time_point then;

    cpu_set_t usable;
    FILE * file = sched_getaffinity(0, sizeof(usable), &usable) == 0 ? std::fopen("/proc/stat", "r") : nullptr;
    if (!file) {
        return -1;
    }
    long long ticks = 0;
    char line[512];
    while (std::fgets(line, sizeof(line), file) && std::strncmp(line, "cpu", 3) == 0) {
        int cpu = 0;
        long long nice = 0, idle = 0, waiting = 0;
        if (line[3] >= '0' && line[3] <= '9' &&
                std::sscanf(line, "cpu%d %*d %lld %*d %lld %lld", &cpu, &nice, &idle, &waiting) == 4 &&
                cpu < CPU_SETSIZE && CPU_ISSET(cpu, &usable)) {
            ticks += nice + idle + waiting;
        }
    }
    std::fclose(file);

    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - then).count();
    const double cores   = last < 0 || ticks == 0 || seconds <= 0 ? -1 : (ticks - last)/(seconds*sysconf(_SC_CLK_TCK));
    last = ticks;
    then = now;
    return cores;
}
#else
double pymtp_free_cores() { return -1; }
#endif
