// Looks at control groups, whose folders are the arguments. For each second of the input it prints the cores of the
// bound that was met lately.
#include "quota.h"

#include <cstdio>
#include <iostream>

int main(int argc, char ** argv) {
    cpu_quotas quotas;
    for (int i = 1; i < argc; ++i) {
        quotas.watch(argv[i]);
    }
    for (double now; std::cin >> now;) {
        std::printf("%.2f\n", quotas.met(now));
        std::fflush(stdout);
    }
}
