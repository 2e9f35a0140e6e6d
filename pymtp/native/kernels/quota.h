// Bounds on processor time that control groups of Linux set for this process, such as a container's.
#pragma once

#include <mutex>
#include <string>
#include <vector>

class cpu_quotas {
  public:
    // Looks at a group from now on. folder: where its files are.
    void watch(const std::string & folder);

    // Returns the cores of the least bound that has stopped this process in the last seconds; 0 for none. now: seconds.
    double met(double now);

    // Around a fork, which is to find the list whole.
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }

  private:
    struct group {
        std::string folder;
        long long   stops;     // so far, -1 where nobody knows
        double      cores = 0; // of its bound, when it was met last
        double      when  = 0;
    };

    std::mutex         mutex;
    std::vector<group> groups;
};
