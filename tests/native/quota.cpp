// Test program for cpu_quotas. Watches the control groups whose folders are the arguments. Reads times, in seconds,
// from the standard input. For each time, prints the quota, in cores, that throttled the process lately (0 if none
// did).
#include "threads/quota.h"

#include <cstdio>
#include <iostream>

int main(int argc, char ** argv) {
    cpu_quotas quotas;
    for (int i = 1; i < argc; ++i) {
        quotas.watch(argv[i]);
    }
    for (double now; std::cin >> now;) {
        std::printf("%.2f\n", quotas.active_quota(now));
        std::fflush(stdout);
    }
}
