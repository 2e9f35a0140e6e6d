#include "team_size.h"

#include <algorithm>

namespace {

constexpr double BETTER         = 0.97;  // of the time, for another number to be taken
constexpr double TRIAL_SECONDS  = 0.010; // of graphs that another number is tried with,
constexpr int    TRIAL_GRAPHS   = 3;     // and at least so many
constexpr double UP_SECONDS     = 0.150; // of graphs that more threads are tried with: a bound on processor time shows after 100 ms
constexpr double WORSE          = 1.15;  // of the time, for a trial to end at once
constexpr double WINDOW_SECONDS = 0.050; // of graphs whose stalls are looked at together, and at least TRIAL_GRAPHS
constexpr double STALLED        = 0.6;   // of one thread's time, and at least LEAST_STALLED of all: fewer threads are tried
constexpr double LEAST_STALLED  = 0.1;
constexpr double LATELY_SECONDS = 0.1;   // of graphs whose mean another number is compared with
constexpr double SMALL_SECONDS  = 0.002; // of a graph that may be done sooner by half the threads
constexpr int    SMALL_GRAPHS   = 16;    // after which they are tried
constexpr double FREE_CORES     = 0.25;  // for one thread more

// Seconds after a trial that was lost, the first time and at most.
constexpr double DOWN_FIRST  = 0.05, DOWN_MOST  = 4;
constexpr double UP_FIRST    = 0.25, UP_MOST    = 8;
constexpr double SMALL_FIRST = 2,    SMALL_MOST = 60;

int step_of(int n) { return std::max(1, n/8); }

} // namespace

bool team_stalls::saw(const team_launch & launch) {
    whole   += launch.whole;
    stalled += launch.whole*(launch.stalled - std::max(LEAST_STALLED, STALLED/launch.n));
    n++;
    if (whole < WINDOW_SECONDS || n < TRIAL_GRAPHS) {
        return false;
    }
    const bool said = stalled > 0;
    *this = {};
    return said;
}

void team_size::patience::lose(double now, double first, double most) {
    wait = std::min(most, wait > 0 ? 2*wait : first);
    next = now + wait;
}

void team_size::sums::add(const team_launch & launch) {
    seconds += launch.seconds;
    whole   += launch.whole;
    n       += 1;
}

void team_size::sums::forget_half() {
    seconds /= 2;
    whole   /= 2;
    n       /= 2;
}

void team_size::settle(int n_now) {
    if (n_now != n) {
        n    = n_now;
        used = {};
    }
    n_try = 0;
}

void team_size::try_size(int n_other, bool for_small) {
    n_try    = n_other;
    is_small = for_small;
    tried    = {};
}

int team_size::judge(double now) {
    if (tried.mean() < BETTER*used.mean()) {
        patience & back = n_try > n ? down : up;
        back = {};
        back.lose(now, UP_FIRST, UP_MOST);
        const bool more = n_try > n;
        settle(n_try);
        const bool tells = more ? gave_way : !is_small;
        gave_way = n < n_most && (more ? gave_way : gave_way || !is_small);
        return tells ? n : 0;
    }
    if (n_try > n) {
        up.lose(now, UP_FIRST, UP_MOST);
    } else if (!is_small) {
        down.lose(now, DOWN_FIRST, DOWN_MOST);
    }
    settle(n);
    return 0;
}

void team_size::hear(int n_other) {
    n_other = std::min(n_other, n_most);
    if (n_other < n) {
        settle(n_other);
        gave_way = true;
    } else if (n_other > n) {
        up = {};
    }
}

int team_size::saw(const team_launch & launch, bool stalls, double now, double free_cores) {
    if (n_most == 1 || launch.n != choose()) {
        return 0;
    }
    if (n_try) {
        tried.add(launch);
        const bool worse = tried.mean() > WORSE*used.mean() && tried.whole >= TRIAL_SECONDS/4;
        if (worse || (tried.n >= TRIAL_GRAPHS && tried.whole >= (n_try > n ? UP_SECONDS : TRIAL_SECONDS))) {
            return judge(now);
        }
        return 0;
    }
    if (used.whole > LATELY_SECONDS) {
        used.forget_half();
    }
    used.add(launch);
    if (n > 1 && stalls && now >= down.next) {
        try_size(n - step_of(n), false);
    } else if (n > 1 && used.n >= SMALL_GRAPHS && launch.whole < SMALL_SECONDS && now >= small.next) {
        small.lose(now, SMALL_FIRST, SMALL_MOST);
        try_size(n - n/2, true);
    } else if (n < n_most && now >= up.next && (free_cores >= FREE_CORES || free_cores < 0)) {
        try_size(std::min(n_most, n + step_of(n)), false);
    }
    return 0;
}
