#include "team.h"

#if defined(GGML_USE_OPENMP) && __GNUC__ >= 9 && !defined(__clang__) && !defined(_WIN32)
#include <omp.h>
#include <pthread.h>

static void end_team() {
    omp_pause_resource_all(omp_pause_hard); // within a parallel region it does nothing
}

// Not Python's os.register_at_fork: C code may fork as well.
void pymtp_end_teams_before_forks() {
    static const int registered = pthread_atfork(end_team, nullptr, nullptr);
    (void) registered;
}
#else
void pymtp_end_teams_before_forks() {}
#endif
