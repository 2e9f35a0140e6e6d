#include "team_size.h"

#include <algorithm>

namespace {

constexpr double BETTER         = 0.97;  // of the time, for another number to be taken
constexpr double TRIAL_SECONDS  = 0.010; // of graphs that another number is tried with,
constexpr int    TRIAL_GRAPHS   = 3;     // and at least so many
constexpr double WORSE          = 1.15;  // of the time, for a trial to end at once
constexpr double WINDOW_SECONDS = 0.050; // of graphs whose stalls are looked at together, and at least TRIAL_GRAPHS
constexpr double STALLED        = 0.6;   // of one thread's time, and at least LEAST_STALLED of all: fewer threads are tried
constexpr double LEAST_STALLED  = 0.1;
constexpr double SMALL_SECONDS  = 0.002; // of a graph that may be done sooner by half the threads
constexpr int    SMALL_GRAPHS   = 16;    // after which they are tried
constexpr double FREE_CORES     = 0.6;   // for one thread more
constexpr double LEARNS         = 0.25;  // of a new time

// Seconds after a trial that was lost, the first time and at most.
constexpr double DOWN_FIRST  = 0.05, DOWN_MOST  = 4;
constexpr double UP_FIRST    = 0.25, UP_MOST    = 8;
constexpr double SMALL_FIRST = 2,    SMALL_MOST = 60;

int step_of(int n) { return std::max(1, n/8); }

} // namespace

void team_size::patience::lose(double now, double first, double most) {
    wait = std::min(most, wait > 0 ? 2*wait : first);
    next = now + wait;
}

void team_size::settle(int n_now) {
    if (n_now != n) {
        n       = n_now;
        seconds = 0;
    }
    n_try  = 0;
    window = window_stalled = 0;
    n_window = 0;
}

void team_size::try_size(int n_other) {
    n_try = n_other;
    tried_seconds = tried_whole = 0;
    n_tried = 0;
}

void team_size::judge(double now) {
    if (tried_seconds/n_tried < BETTER*seconds) {
        patience & back = n_try > n ? down : up;
        back = {};
        back.lose(now, UP_FIRST, UP_MOST);
        settle(n_try);
        return;
    }
    if (n_try > n) {
        up.lose(now, UP_FIRST, UP_MOST);
    } else {
        down.lose(now, DOWN_FIRST, DOWN_MOST);
    }
    settle(n);
}

void team_size::look_down(const team_launch & launch, double whole, double now) {
    window         += whole;
    window_stalled += whole*launch.stalled;
    n_window++;
    if (window >= WINDOW_SECONDS && n_window >= TRIAL_GRAPHS) {
        const bool stalled = window_stalled > std::max(LEAST_STALLED, STALLED/n)*window;
        window = window_stalled = 0;
        n_window = 0;
        if (stalled && now >= down.next) {
            try_size(n - step_of(n));
            return;
        }
    }
    if (n_window >= SMALL_GRAPHS && whole < SMALL_SECONDS && now >= small.next) {
        small.lose(now, SMALL_FIRST, SMALL_MOST);
        try_size(n - n/2);
    }
}

void team_size::saw(const team_launch & launch, double whole, double now, double free_cores) {
    if (n_most == 1 || launch.n != choose()) {
        return;
    }
    if (n_try) {
        tried_seconds += launch.seconds;
        tried_whole   += whole;
        n_tried++;
        const bool worse = whole >= TRIAL_SECONDS/4 && launch.seconds > WORSE*seconds;
        if (worse || (n_tried >= TRIAL_GRAPHS && tried_whole >= TRIAL_SECONDS)) {
            judge(now);
        }
        return;
    }
    seconds = seconds > 0 ? seconds + LEARNS*(launch.seconds - seconds) : launch.seconds;
    if (n > 1) {
        look_down(launch, whole, now);
    }
    if (!n_try && n < n_most && now >= up.next && (free_cores >= FREE_CORES || free_cores < 0)) {
        try_size(std::min(n_most, n + step_of(n)));
    }
}
