#include "team.h"

#if defined(GGML_USE_OPENMP) && __GNUC__ >= 9 && !defined(__clang__) && !defined(_WIN32)
#include <omp.h>
#include <pthread.h>

static thread_local bool has_team = false;

static void end_team() {
    if (has_team) {
        omp_pause_resource_all(omp_pause_hard);
        has_team = false;
    }
}

// Not Python's os.register_at_fork: C code may fork as well.
[[maybe_unused]] static const int registered = pthread_atfork(end_team, nullptr, nullptr);

void pymtp_mark_team() {
    has_team = true;
}
#else
void pymtp_mark_team() {}
#endif
