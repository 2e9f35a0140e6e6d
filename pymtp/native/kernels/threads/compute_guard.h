// Catches exceptions of failed assertions in threads that compute a graph. An exception must not leave a thread of a
// parallel region. So a thread that fails waits until every thread of the region has failed, and then the thread that
// called ggml_graph_compute rethrows the exception.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Calls share(data), one thread's share of a graph that n_threads threads compute. `pool` identifies the graph. Ends
// the process if only some of the threads fail, because the other threads would wait at a barrier forever.
void pymtp_compute_guard(void (*share)(void *), void * data, const void * pool, int n_threads);

// Rethrows the first exception of the graph's threads, if there was one. Must be called after the parallel region, by
// the thread that called ggml_graph_compute.
void pymtp_compute_rethrow(const void * pool);

// Returns whether the calling thread is inside pymtp_compute_guard().
bool pymtp_compute_guarded(void);

// For tests: makes an assertion fail in the next n threads that start their share of a graph. seconds: how long a
// failed thread waits for the other threads to fail.
void pymtp_compute_break(int n, int seconds);

#ifdef __cplusplus
}
#endif
