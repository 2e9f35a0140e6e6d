// A failed assertion in a thread that computes a graph. No exception may leave a thread of a parallel region: it waits at the
// thread's end until every thread of the region has met one, and goes on from the thread that asked for the graph.
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Runs one thread's share of a graph that n_threads compute. pool tells the threads of one graph from those of another.
// Ends the process where only some of the threads meet an assertion: the others wait for these at a barrier, for good.
void pymtp_compute_guard(void (*share)(void *), void * data, const void * pool, int n_threads);

// In the thread that asked for the graph, after the region: throws what the threads threw, if they did.
void pymtp_compute_rethrow(const void * pool);

// Whether this thread is within pymtp_compute_guard.
bool pymtp_compute_guarded(void);

// For tests: an assertion fails in the next n threads that begin their share of a graph. The first of them waits as many
// seconds for the others as given.
void pymtp_compute_break(int n, int seconds);

#ifdef __cplusplus
}
#endif
