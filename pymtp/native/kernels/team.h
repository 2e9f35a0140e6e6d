// The threads that OpenMP keeps between graphs: a team for each thread that computed one, or laid out weights for AMX.
//
// A child made by fork has the record of a team and none of its threads, and GCC's OpenMP would wait for them for ever. So
// before each fork the thread that forks ends its team, and its next graph starts another. The team may be another library's
// as well: what that keeps in its threads (threadprivate) is lost with them. Other OpenMPs see to forks themselves.
#pragma once

// To be called once, before anything computes.
void pymtp_end_teams_before_forks();
