// Watches files of control groups: arguments are pairs of a cpu.stat and its group's cores. For each line of the input it
// prints the cores of the bound that was met since the line before.
#include "quota.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char ** argv) {
    cpu_quotas quotas;
    for (int i = 1; i + 1 < argc; i += 2) {
        quotas.watch(argv[i], std::atof(argv[i + 1]));
    }
    for (std::string line; std::getline(std::cin, line);) {
        std::printf("%.2f\n", quotas.met());
        std::fflush(stdout);
    }
}
