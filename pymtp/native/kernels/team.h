// The threads that OpenMP keeps between graphs: a team for each thread that computed one, or laid out weights for AMX.
//
// A child made by fork has the record of a team and none of its threads, and GCC's OpenMP would wait for them for ever. So
// before a fork, however it comes about, the thread that forks ends its team, and its next graph starts another. Only where
// it has one: what other libraries do with this OpenMP on the thread ends with it. Other OpenMPs see to forks themselves.
#pragma once

// To be called by a thread that computed a graph, or is about to load a model.
void pymtp_mark_team();
