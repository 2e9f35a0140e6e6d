// The threads that compute graphs. There is one set of them for the process, whatever thread asks and however many
// contexts there are: a graph that is asked for while others are computed waits until enough of the cores are free.
// Threads that wait look for work for a moment, then sleep.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// As ggml_threadpool_params.poll: all threads that were asked for compute each graph.
#define PYMTP_TEAM_ALL 100

#ifdef __cplusplus
extern "C" {
#endif

// Waits for its turn. Returns the number of threads that a graph is to be computed with: n_most at most, and with all
// n_most, as far as the system gives them. Is followed by pymtp_team_run in the same thread. n_nodes, n_rows: of the
// graph; graphs that are alike take about as long.
int pymtp_team_begin(int n_most, bool all, int n_nodes, int64_t n_rows);

// Calls share(data, i) for each i of 0 to n - 1, each in a thread of its own, 0 in the calling one. share throws
// nothing. n: as pymtp_team_begin returned it.
void pymtp_team_run(int n, void (*share)(void * data, int i), void * data);

// Looks at a control group of Linux from now on, which may have a bound on processor time. folder: where its files are.
void pymtp_team_watch_quota(const char * folder);

// Counts how often other programs have taken threads away, or given them back, so far.
uint32_t pymtp_team_changes(void);

// Counts the graphs of the calling thread that another number of threads was tried with so far.
uint32_t pymtp_team_trials(void);

// What a thread has of the team while it computes a graph.
struct pymtp_team_part {
    void * pool;
    void * crew;
    int    n_cores;
};

// Around code of others that this thread runs within share, which may wait for other graphs, compute some, and fork:
// gives the cores back, and takes them again without waiting.
struct pymtp_team_part pymtp_team_leave(void);
void                   pymtp_team_return(struct pymtp_team_part part);

// Within share of the calling thread: the graph is broken off, and the time that it took tells nothing. Does nothing
// elsewhere.
void pymtp_team_learn_nothing(void);

// Within share: returns when all n threads of the graph came here.
void pymtp_team_barrier(int n);

#ifdef __cplusplus
}
#endif
