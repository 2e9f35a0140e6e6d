// What each operation of the graphs takes that the CPU computes, for `pymtp bench rows`. Off, it costs a branch a node.
//
// Marks on the first thread of a graph: the dispatch of a node, and the call of the graph's abort callback, which
// ggml-cpu makes after that thread's share of each node. What lies between them is the node's, from there to the next
// node the first thread waits at the barrier for others.

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
    double  seconds = 0.0;  // of the first thread, its share and its waiting
    double  waiting = 0.0;  // of these: at the barrier after it
    int64_t bytes   = 0;    // of weights that products read
};

class op_times {
  public:
    // by operation and type of the weights, which is GGML_TYPE_COUNT where there are none
    using sums = std::map<std::pair<const char *, ggml_type>, op_time>;

    sums take();  // what was computed since the last call

    void begin(const ggml_cgraph * cgraph, int node_n);  // the first thread comes to a node
    void end_share();                                    // its share of the node is done

  private:
    using clock = std::chrono::steady_clock;

    sums                found;
    op_time *           current = nullptr;  // the node's that began last
    const ggml_cgraph * graph   = nullptr;
    int                 last    = 0;
    bool                waits   = false;    // its share is done
    clock::time_point   marked;
};

// While one lives, the graphs that its thread computes are timed; null times nothing.
class timed_ops {
  public:
    explicit timed_ops(op_times * times);
    ~timed_ops();
    timed_ops(const timed_ops &)             = delete;
    timed_ops & operator=(const timed_ops &) = delete;
};

extern std::atomic<int>        n_timed;        // threads that time
extern thread_local op_times * times_of_thread;

// The thread's, or null.
inline op_times * timing() {
    return n_timed.load(std::memory_order_relaxed) > 0 ? times_of_thread : nullptr;
}

}  // namespace pymtp
