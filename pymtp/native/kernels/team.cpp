#include "team.h"

#if defined(GGML_USE_OPENMP) && __GNUC__ >= 9 && !defined(__clang__)
#include <omp.h>

void pymtp_end_team() {
    omp_pause_resource_all(omp_pause_hard);
}
#else
void pymtp_end_team() {}
#endif
