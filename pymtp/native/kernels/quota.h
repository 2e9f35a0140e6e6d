// Bounds on processor time that control groups of Linux set for this process, such as a container's.
#pragma once

#include <mutex>
#include <string>
#include <vector>

class cpu_quotas {
  public:
    // Takes notice of a group's bound. file: its cpu.stat. cores: whose time it has.
    void watch(const std::string & file, double cores);

    // Returns the cores of the least bound that has stopped this process since the last call; 0 for none.
    double met();

  private:
    struct quota {
        std::string file;
        double      cores;
        long long   stops; // so far
    };

    std::mutex         mutex;
    std::vector<quota> quotas;
};
