// A profiler of operations: the time of each operation in the graphs that the CPU computes, for `pymtp bench rows`.
// While it is off, it costs one branch per node.
//
// The first thread of a graph takes the time when it begins a node (dispatch.cpp), and when ggml-cpu calls the graph's
// abort callback, which it does after that thread's share of each node. From there to the next node the first thread
// waits at the barrier for the other threads.

#pragma once

#include "ggml.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

namespace pymtp {

struct op_time {
    int64_t nodes   = 0;
    double  seconds = 0.0;  // of the first thread: its share and its wait
    double  waiting = 0.0;  // the part of them that it waits at the barrier after the node
    int64_t bytes   = 0;    // weights that the products read
};

class op_times {
  public:
    // The key is the operation and the type of its weights, GGML_TYPE_COUNT if it has none.
    using sums = std::map<std::pair<const char *, ggml_type>, op_time>;

    // Returns the sums since the last call.
    sums take();

    // The first thread begins a node.
    void begin(const ggml_cgraph * cgraph, int node_n);

    // The first thread has computed its share of the node.
    void end_share();

  private:
    using clock = std::chrono::steady_clock;

    sums                totals;
    op_time *           current    = nullptr;  // the totals of the last node
    const ggml_cgraph * graph      = nullptr;
    int                 last_node  = 0;
    bool                share_done = false;
    clock::time_point   since;
};

// Profiles the graphs that this thread computes while the object exists. With null, nothing is profiled.
class timed_ops {
  public:
    explicit timed_ops(op_times * times);
    ~timed_ops();
    timed_ops(const timed_ops &)             = delete;
    timed_ops & operator=(const timed_ops &) = delete;
};

extern std::atomic<int>        n_timed_threads;
extern thread_local op_times * thread_op_times;

// Returns the profiler of this thread, or null.
inline op_times * timing() {
    return n_timed_threads.load(std::memory_order_relaxed) > 0 ? thread_op_times : nullptr;
}

}  // namespace pymtp
