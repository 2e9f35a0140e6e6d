// Catches exceptions of failed assertions in threads that compute a graph. No exception may leave a thread of a
// parallel region. So a thread that fails waits until every thread of the region has failed, and the thread that called
// ggml_graph_compute rethrows the exception.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Runs one thread's share of a graph that n_threads threads compute. pool identifies the graph. Ends the process if
// only some of the threads fail, because the others would wait for them at a barrier forever.
void pymtp_compute_guard(void (*share)(void *), void * data, const void * pool, int n_threads);

// Rethrows the exception of the threads, if there was one. The thread that called ggml_graph_compute calls this after
// the parallel region.
void pymtp_compute_rethrow(const void * pool);

// Returns whether this thread is in pymtp_compute_guard().
bool pymtp_compute_guarded(void);

// For tests: makes an assertion fail in the next n threads that begin their share of a graph. A thread that failed
// waits this many seconds for the others.
void pymtp_compute_break(int n, int seconds);

#ifdef __cplusplus
}
#endif
