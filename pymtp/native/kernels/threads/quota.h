// CPU quotas: limits on processor time that Linux control groups set for this process, such as the limit of a
// container.
#pragma once

#include <mutex>
#include <string>
#include <vector>

class cpu_quotas {
  public:
    // Watches a control group from now on. folder: the folder with the group's files.
    void watch(const std::string & folder);

    // Reads the files of all watched groups. Returns the lowest quota, in cores, that has throttled this process within
    // the last 5 seconds, or 0 if none has. now: the current time in seconds, always of the same clock.
    double active_quota(double now);

    // Must be called before and after a fork, so that no other thread is changing the list of groups at the fork.
    void lock() { mutex.lock(); }
    void unlock() { mutex.unlock(); }

  private:
    struct group {
        std::string folder;
        long long   throttled;  // number of periods in which the group was throttled, -1 if unknown
        double      quota  = 0; // the group's quota, in cores, when it last throttled this process
        double      hit_at = 0; // the time at which the group last throttled this process, in seconds
    };

    std::mutex         mutex;
    std::vector<group> groups;
};
