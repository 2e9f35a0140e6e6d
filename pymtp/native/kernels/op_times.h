// A profiler for `pymtp bench rows`. It measures the time of each operation in the graphs that the CPU computes. While
// the profiler is off, it costs one branch per node.
//
// The first thread of a graph reads the clock twice per node: when it starts the node (dispatch.cpp), and when it has
// computed its own share of the node, since ggml-cpu then calls the graph's abort callback. Between that callback and
// the start of the next node, the first thread waits at the barrier for the other threads.

#pragma once

#include "ggml.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

namespace pymtp {

struct op_time {
    int64_t nodes   = 0;  // number of nodes of the operation
    double  seconds = 0.0;  // time of the first thread: for its own share, and waiting for other threads
    double  waiting = 0.0;  // the part of `seconds` that the first thread waits at the barrier after the node
    int64_t bytes   = 0;    // bytes of weights that matrix products read
};

class op_times {
  public:
    // The times by operation name and type of its weights (GGML_TYPE_COUNT for an operation without weights).
    using sums = std::map<std::pair<const char *, ggml_type>, op_time>;

    // Returns the sums since the last call of take(), and begins new sums.
    sums take();

    // Must be called when the first thread starts node node_n.
    void begin(const ggml_cgraph * cgraph, int node_n);

    // Must be called when the first thread has computed its own share of the node.
    void end_share();

  private:
    using clock = std::chrono::steady_clock;

    sums                totals;
    op_time *           current    = nullptr;  // the entry of `totals` for the node that was started last
    const ggml_cgraph * graph      = nullptr;
    int                 last_node  = 0;
    bool                share_done = false;
    clock::time_point   since;
};

// While an object of this class exists, the graphs that its thread computes are profiled into `times`. With null,
// nothing is profiled.
class timed_ops {
  public:
    explicit timed_ops(op_times * times);
    ~timed_ops();
    timed_ops(const timed_ops &)             = delete;
    timed_ops & operator=(const timed_ops &) = delete;
};

extern std::atomic<int>        n_timed_threads;
extern thread_local op_times * thread_op_times;

// Returns the profiler of this thread, or null if nothing is profiled.
inline op_times * timing() {
    return n_timed_threads.load(std::memory_order_relaxed) > 0 ? thread_op_times : nullptr;
}

}  // namespace pymtp
