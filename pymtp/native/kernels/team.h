// The threads that OpenMP keeps between graphs.
#pragma once

// Ends those of this thread; the next graph starts others. OpenMP keeps a team for each thread that computed a graph, or laid
// out weights for AMX. A child made by fork has a copy of the team's record and none of its threads, and GCC's OpenMP would
// wait for them for ever: call this before a fork. Other OpenMPs see to forks themselves.
void pymtp_end_team();
