#include "threads/compute_guard.h"

#include "kernels.h"
#include "threads/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace {

// How long a failed thread waits for the other threads to fail. The threads compute each node together, and are seldom
// a millisecond apart. In a test with five times as many threads as cores, one thread waited for 3.8 s.
std::atomic<int> timeout_seconds{10};

struct failed_graph {
    int                n_failed = 0;
    std::exception_ptr first;
};

std::mutex              mutex;
std::condition_variable failure_added;
std::atomic<int>        n_failed_graphs{0}; // the size of failed_graphs, to read without the lock
std::map<const void *, std::shared_ptr<failed_graph>> failed_graphs;

std::atomic<int>  n_to_fail{0};
thread_local bool is_guarded = false;

void fail_for_test() {
    if (n_to_fail.load(std::memory_order_relaxed) > 0 && n_to_fail.fetch_sub(1) > 0) {
        GGML_ABORT("this thread was told to fail");
    }
}

// Waits until all threads of the graph have failed. Ends the process if they do not within timeout_seconds. Must be
// called in a catch block.
void wait_for_other_threads(const void * pool, int n_threads) {
    std::unique_lock<std::mutex> lock(mutex);
    std::shared_ptr<failed_graph> & entry = failed_graphs[pool];
    if (!entry) {
        entry = std::make_shared<failed_graph>();
        entry->first = std::current_exception();
        n_failed_graphs++;
    }
    // A copy of the pointer, because pymtp_compute_rethrow() may erase the entry before all threads wake up.
    const std::shared_ptr<failed_graph> graph = entry;
    graph->n_failed++;
    failure_added.notify_all();
    const auto all_failed = [&] { return graph->n_failed == n_threads; };
    if (failure_added.wait_for(lock, std::chrono::seconds(timeout_seconds), all_failed)) {
        return;
    }
    const int n_failed = graph->n_failed;
    lock.unlock();
    std::string message = "an exception";
    try {
        std::rethrow_exception(graph->first);
    } catch (const std::exception & error) {
        message = error.what();
    } catch (...) {
    }
    message += ": in " + std::to_string(n_failed) + " of the " + std::to_string(n_threads) +
               " threads that compute a graph; the process cannot go on\n";
    GGML_LOG_ERROR("%s", message.c_str());
    fputs(message.c_str(), stderr); // printed here, too, because the log may have no handler
    abort();
}

struct guarded_graph {
    int    n_threads;
    void (*share)(void *, int);
    void * pool;
};

void compute_share(void * data, int i) {
    const auto & graph = *static_cast<const guarded_graph *>(data);
    is_guarded = true;
    try {
        fail_for_test();
        graph.share(graph.pool, i);
    } catch (...) {
        wait_for_other_threads(graph.pool, graph.n_threads);
    }
    is_guarded = false;
}

} // namespace

int pymtp_compute_begin(int n_max, bool all_threads, const ggml_cgraph * graph) {
    const ggml_tensor * const * end     = graph->nodes + graph->n_nodes;
    const ggml_tensor * const * product = std::find_if(graph->nodes, graph->nodes + graph->n_nodes,
            [](const ggml_tensor * node) { return node->op == GGML_OP_MUL_MAT; });
    return pymtp_team_begin(n_max, all_threads, graph->n_nodes, product == end ? 1 : (*product)->ne[1]);
}

void pymtp_compute_run(int n_threads, void (*share)(void *, int), void * pool) {
    guarded_graph graph = { n_threads, share, pool };
    pymtp_team_run(n_threads, compute_share, &graph);
}

void pymtp_compute_rethrow(const void * pool) {
    if (n_failed_graphs.load(std::memory_order_relaxed) == 0) {
        return;
    }
    n_to_fail = 0; // no later graph must fail, even if this graph had fewer threads than n_to_fail
    std::exception_ptr exception;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto it = failed_graphs.find(pool);
        if (it == failed_graphs.end()) {
            return;
        }
        exception = it->second->first;
        failed_graphs.erase(it);
        n_failed_graphs--;
    }
    std::rethrow_exception(exception);
}

bool pymtp_compute_guarded(void) {
    return is_guarded;
}

void pymtp_compute_break(int n, int seconds) {
    timeout_seconds = seconds;
    n_to_fail       = n;
}
