// The thread pool that computes graphs. The process has one pool, for all calling threads and all contexts. A graph
// waits until enough cores are free. The threads that compute a graph together are a team. Idle threads spin for a
// moment, then sleep.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A value for ggml_threadpool_params.poll: each graph gets n_threads threads, and the pool must not choose fewer.
#define PYMTP_TEAM_ALL 100

#ifdef __cplusplus
extern "C" {
#endif

// Waits until enough cores are free, and reserves them for a graph. Returns the number of threads for the graph, at
// most n_max. With all_threads, that is n_max, or fewer if the system cannot start more threads. The same thread must
// then call pymtp_team_run(). n_nodes and n_rows identify the kind of the graph: graphs of the same kind take about the
// same time per row.
int pymtp_team_begin(int n_max, bool all_threads, int n_nodes, int64_t n_rows);

// Calls share(data, i) for each i from 0 to n - 1, each in a thread of its own, with i = 0 in the calling thread. Then
// frees the cores of the graph. share must not throw. n: the result of pymtp_team_begin().
void pymtp_team_run(int n, void (*share)(void * data, int i), void * data);

// Watches a Linux control group, which may have a CPU quota. folder: the folder with the group's files.
void pymtp_team_watch_quota(const char * folder);

// Returns how many times so far the pool has given graphs fewer threads because of other programs, or more threads
// again.
uint32_t pymtp_team_changes(void);

// Returns how many graphs of the calling thread were trials of another number of threads so far.
uint32_t pymtp_team_trials(void);

// The state of a thread that computes a graph, which pymtp_team_leave() returns and pymtp_team_return() restores.
struct pymtp_team_part {
    void * pool;
    void * team;
    int    n_cores;
};

// Must be called before and after callbacks that run inside share, because callbacks may wait for other graphs, compute
// graphs, and fork. pymtp_team_leave() gives the graph's cores back to the pool. pymtp_team_return() takes them again
// at once, even if they are not free.
struct pymtp_team_part pymtp_team_leave(void);
void                   pymtp_team_return(struct pymtp_team_part part);

// Excludes the time of the current graph from the choice of the number of threads, because the graph was aborted. Must
// be called inside share, in the thread that called pymtp_team_run(). Does nothing outside a graph.
void pymtp_team_learn_nothing(void);

// Waits until all n threads of the graph have called this function. Must be called inside share.
void pymtp_team_barrier(int n);

#ifdef __cplusplus
}
#endif
