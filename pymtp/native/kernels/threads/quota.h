// CPU quotas: limits on processor time that Linux control groups set for this process, such as a container's.
#pragma once

#include <mutex>
#include <string>
#include <vector>

class cpu_quotas {
  public:
    // Watches a group from now on. folder: the folder with its files.
    void watch(const std::string & folder);

    // Returns the lowest quota, in cores, that has throttled this process within the last seconds, or 0 if none has.
    // now: seconds of any clock.
    double active_quota(double now);

    // Called before and after a fork, so that the child has an intact list.
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }

  private:
    struct group {
        std::string folder;
        long long   throttled;  // periods in which it was throttled so far, -1 if unknown
        double      quota  = 0; // cores that it had when it last throttled this process
        double      hit_at = 0; // when that was, in seconds
    };

    std::mutex         mutex;
    std::vector<group> groups;
};
