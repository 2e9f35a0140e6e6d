// Computes a graph with the team, and catches exceptions of failed assertions in the team's threads. An exception must
// not leave a thread of a parallel region. So a thread that fails waits until every thread of the region has failed,
// and then the thread that called ggml_graph_compute rethrows the exception.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

// Reserves at most n_max threads of the team for a graph, and returns their number; see pymtp_team_begin().
int pymtp_compute_begin(int n_max, bool all_threads, const struct ggml_cgraph * graph);

// Calls share(pool, i) in the n_threads threads of the team, like pymtp_team_run(), but share may throw. Ends the
// process if only some of the threads fail, because the other threads would wait at a barrier forever.
void pymtp_compute_run(int n_threads, void (*share)(void * pool, int i), void * pool);

// Rethrows the first exception of the graph's threads, if there was one. Must be called after pymtp_compute_run(), by
// the thread that called it.
void pymtp_compute_rethrow(const void * pool);

// Returns whether the calling thread is computing its share of a graph.
bool pymtp_compute_guarded(void);

// For tests: makes an assertion fail in the next n threads that start their share of a graph. seconds: how long a
// failed thread waits for the other threads to fail.
void pymtp_compute_break(int n, int seconds);

#ifdef __cplusplus
}
#endif
