// The thread pool that computes graphs. The process has one, for all calling threads and all contexts. A graph waits
// until enough cores are free. Its threads are a team. Idle threads spin for a moment, then sleep.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A value of ggml_threadpool_params.poll: each graph has n_threads threads, and the pool does not choose fewer.
#define PYMTP_TEAM_ALL 100

#ifdef __cplusplus
extern "C" {
#endif

// Waits until enough cores are free. Returns the number of threads for a graph: n_max at most. With all_threads it is
// n_max, or fewer if the system has no more threads. The same thread then calls pymtp_team_run(). n_nodes and n_rows
// identify the kind of the graph: graphs of a kind take about the same time.
int pymtp_team_begin(int n_max, bool all_threads, int n_nodes, int64_t n_rows);

// Calls share(data, i) for each i from 0 to n - 1, each in its own thread, and 0 in the calling thread. share must not
// throw. n: the result of pymtp_team_begin().
void pymtp_team_run(int n, void (*share)(void * data, int i), void * data);

// Watches a Linux control group, which may have a CPU quota. folder: the folder with its files.
void pymtp_team_watch_quota(const char * folder);

// Returns how often so far the threads of graphs became fewer because of other programs, or more again.
uint32_t pymtp_team_changes(void);

// Returns how many graphs of the calling thread so far were trials of another number of threads.
uint32_t pymtp_team_trials(void);

// The state of a thread that computes a graph.
struct pymtp_team_part {
    void * pool;
    void * team;
    int    n_cores;
};

// Call these before and after callbacks that run inside share: they may wait for other graphs, compute graphs, and
// fork. pymtp_team_leave() gives the cores back. pymtp_team_return() takes them again, without a wait.
struct pymtp_team_part pymtp_team_leave(void);
void                   pymtp_team_return(struct pymtp_team_part part);

// Excludes the time of the current graph from the choice of the number of threads, because the graph was aborted. Call
// it inside share, in the calling thread. Does nothing elsewhere.
void pymtp_team_learn_nothing(void);

// Waits until all n threads of the graph have called this. Call it inside share.
void pymtp_team_barrier(int n);

#ifdef __cplusplus
}
#endif
