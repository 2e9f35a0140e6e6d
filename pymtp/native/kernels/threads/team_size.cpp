#include "threads/team_size.h"

#include <algorithm>

namespace {

constexpr double BETTER         = 0.97;  // a trial wins if its cost is below this part of the present cost
constexpr double TRIAL_SECONDS  = 0.010; // a trial has graphs of this many seconds in all,
constexpr int    TRIAL_GRAPHS   = 3;     // and at least this many graphs
constexpr double UP_SECONDS     = 0.150; // TRIAL_SECONDS for more threads: a quota throttles only after 100 ms
constexpr double LONGEST_TRIAL  = 1;     // most seconds on the clock for a trial of a kind that is rare
constexpr double CHANGE_SECONDS = 5;     // for this time, other kinds of graphs follow a change of one kind
constexpr double WORSE          = 1.15;  // a trial ends early if its cost is this many times the present cost
constexpr double WINDOW_SECONDS = 0.050; // stalls are judged over at least this many seconds and TRIAL_GRAPHS graphs
constexpr double STALLED        = 0.6;   // fewer threads are tried if stalls take at least this part of a thread's time
constexpr double MIN_STALLED    = 0.1;   // and at least this part of the time of all threads
constexpr double MUCH_STALLED   = 0.5;   // half the threads are tried if stalls take more than this part of the time
constexpr double RECENT_SECONDS = 0.1;   // a trial is compared with the mean cost of the graphs in this time before it
constexpr double SMALL_SECONDS  = 0.002; // half the threads are tried for kinds whose graphs take less than this,
constexpr int    SMALL_GRAPHS   = 16;    // after this many graphs with the same number of threads
constexpr double FREE_CORES     = 0.25;  // more threads are tried if this many cores are free

// Seconds from a lost trial to the next one, for trials of fewer threads (DOWN), of more threads (UP), and for small
// graphs (SMALL). The first wait is *_FIRST; each lost trial doubles the wait, up to *_MAX.
constexpr double DOWN_FIRST  = 0.05, DOWN_MAX  = 4;
constexpr double UP_FIRST    = 0.25, UP_MAX    = 8;
constexpr double SMALL_FIRST = 2,    SMALL_MAX = 60;

int step_size(int n) { return std::max(1, n/8); }

} // namespace

double stall_window::add(const graph_timing & timing) {
    seconds += timing.seconds;
    stalled += timing.seconds*timing.stalled;
    allowed += timing.seconds*std::max(MIN_STALLED, STALLED/timing.n);
    n++;
    if (seconds < WINDOW_SECONDS || n < TRIAL_GRAPHS) {
        return 0;
    }
    const double stalled_part = stalled > allowed ? stalled/seconds : 0;
    *this = {};
    return stalled_part;
}

void team_size::backoff::extend(double now, double first, double max) {
    wait = std::min(max, wait > 0 ? 2*wait : first);
    next = now + wait;
}

void team_size::totals::add(const graph_timing & timing) {
    cost    += timing.cost;
    seconds += timing.seconds;
    n       += 1;
}

void team_size::totals::halve() {
    cost    /= 2;
    seconds /= 2;
    n       /= 2;
}

void team_size::set_size(int n_now) {
    if (n_now != n) {
        n        = n_now;
        recent   = {};
        n_recent = 0;
    }
    n_try = 0;
}

void team_size::start_trial(int n_new, reason r, double now) {
    n_try       = n_new;
    why         = r;
    trial       = {};
    trial_began = now;
}

team_size::cores_change team_size::end_trial(double now) {
    const bool more = why == reason::more;
    if (trial.n > 0 && trial.mean() < BETTER*recent.mean()) {
        const bool is_news = more ? yielded : why == reason::stalls; // other kinds of graphs should know this
        backoff &  opposite = more ? down : up;
        opposite = {};
        opposite.extend(now, more || is_news ? UP_FIRST : SMALL_FIRST, UP_MAX);
        set_size(n_try);
        small_steps = false;
        yielded = n < n_max && (yielded || is_news);
        return !is_news ? cores_change::none : more ? cores_change::more : cores_change::fewer;
    }
    if (more) {
        small_steps = n_try > n + step_size(n);
        up.extend(now, UP_FIRST, UP_MAX);
    } else if (why != reason::small) {
        down.extend(now, DOWN_FIRST, DOWN_MAX);
    }
    set_size(n);
    return cores_change::none;
}

void team_size::on_fewer(int n_new) {
    if (n_new < n) {
        set_size(n_new);
        yielded = true;
    }
}

team_size::cores_change team_size::add(const graph_timing & timing, double stalls, double now, double free_cores) {
    if (timing.n < timing.n_asked) { // the system could not start more threads
        n_max = std::min(n_max, timing.n);
        set_size(std::min(n, n_max));
    }
    if (n_max == 1 || timing.n != choose()) {
        return cores_change::none;
    }
    if (timing.quota != quota) { // earlier costs cannot be compared with later ones
        quota    = timing.quota;
        recent   = {};
        n_recent = 0;
        n_try    = 0;
        return cores_change::none;
    }
    if (n_try) {
        trial.add(timing);
        const bool   worse       = trial.mean() > WORSE*recent.mean() && trial.seconds >= TRIAL_SECONDS/4;
        const bool   enough      = trial.n >= TRIAL_GRAPHS || trial.seconds >= UP_SECONDS;
        const double min_seconds = n_try > n ? UP_SECONDS : TRIAL_SECONDS;
        return worse || (enough && (trial.seconds >= min_seconds || now - trial_began >= LONGEST_TRIAL)) ?
            end_trial(now) : cores_change::none;
    }
    if (recent.seconds > RECENT_SECONDS) {
        recent.halve();
    }
    recent.add(timing);
    n_recent++;
    if (n_recent < TRIAL_GRAPHS && recent.seconds < UP_SECONDS) {
        return cores_change::none;
    }
    if (n > 1 && stalls > 0 && now >= down.next) {
        start_trial(n - (stalls > MUCH_STALLED ? n/2 : step_size(n)), reason::stalls, now);
    } else if (n > 1 && quota > 0 && n > quota && now >= down.next) {
        start_trial(n - step_size(n), reason::quota, now);
    } else if (n > 1 && n_recent >= SMALL_GRAPHS && timing.seconds < SMALL_SECONDS && now >= small.next) {
        small.extend(now, SMALL_FIRST, SMALL_MAX);
        start_trial(n - n/2, reason::small, now);
    } else if (n < n_max && now >= up.next && (free_cores >= FREE_CORES || free_cores < 0)) {
        start_trial(std::min(n_max, n + (small_steps ? step_size(n) : n)), reason::more, now);
    }
    return cores_change::none;
}

team_size & team_sizes::find(uint64_t kind, int n_max, double now) {
    const uint64_t key   = 521*kind + n_max;
    entry * const  first = &entries[key*0x9e3779b97f4a7c15u >> 56];
    entry *        it    = std::find_if(first, first + N_WAYS, [&](const entry & e) { return e.key == key; });
    if (it == first + N_WAYS) {
        const auto earlier = [](const entry & a, const entry & b) { return a.last_used < b.last_used; };
        it  = std::min_element(first, first + N_WAYS, earlier);
        *it = { key, 0, 0, team_size(n_max) };
    }
    it->last_used = ++n_calls;
    if (it->n_seen != last_change.count) {
        it->n_seen = last_change.count;
        if (last_change.n_max == n_max && now - last_change.when < CHANGE_SECONDS) {
            const bool fewer = last_change.change == team_size::cores_change::fewer;
            fewer ? it->size.on_fewer(last_change.n) : it->size.on_more();
        }
    }
    return it->size;
}

team_sizes::choice team_sizes::choose(uint64_t kind, int n_max, double now) {
    const team_size & size = find(kind, n_max, now);
    return { size.choose(), size.is_trial() };
}

void team_sizes::add(uint64_t kind, int n_max, const graph_timing & timing, double now, double free_cores) {
    const double            stalled = timing.n > 1 ? stalls.add(timing) : 0;
    team_size &             size    = find(kind, n_max, now);
    team_size::cores_change change  = size.add(timing, stalled, now, free_cores);
    if (change == team_size::cores_change::none) {
        return;
    }
    n_changes += change != last_change.change || n_max != last_change.n_max;
    last_change = { change, size.choose(), n_max, now, last_change.count + 1 };
}
