#include "team_size.h"

#include <algorithm>

namespace {

constexpr double BETTER         = 0.97;  // of the time, for another number to be taken
constexpr double TRIAL_SECONDS  = 0.010; // of graphs that another number is tried with,
constexpr int    TRIAL_GRAPHS   = 3;     // and at least so many
constexpr double UP_SECONDS     = 0.150; // the same for more threads: a bound on processor time shows after 100 ms
constexpr double LONGEST_TRIAL  = 1;     // of a clock, for kinds that are rare
constexpr double NEWS_SECONDS   = 5;     // that a number found by one kind counts for others
constexpr double WORSE          = 1.15;  // of the time, for a trial to end at once
constexpr double WINDOW_SECONDS = 0.050; // of graphs whose stalls are looked at together, and at least TRIAL_GRAPHS
constexpr double STALLED        = 0.6;   // of one thread's time, and LEAST_STALLED of all: fewer are tried
constexpr double LEAST_STALLED  = 0.1;
constexpr double MUCH_STALLED   = 0.5;   // half the threads are tried
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

double team_stalls::saw(const team_launch & launch) {
    whole   += launch.whole;
    stalled += launch.whole*launch.stalled;
    allowed += launch.whole*std::max(LEAST_STALLED, STALLED/launch.n);
    n++;
    if (whole < WINDOW_SECONDS || n < TRIAL_GRAPHS) {
        return 0;
    }
    const double part = stalled > allowed ? stalled/whole : 0;
    *this = {};
    return part;
}

void team_size::patience::lose(double now, double first, double most) {
    wait = std::min(most, wait > 0 ? 2*wait : first);
    next = now + wait;
}

void team_size::sums::add(const team_launch & launch) {
    cost  += launch.cost;
    whole += launch.whole;
    n     += 1;
}

void team_size::sums::forget_half() {
    cost  /= 2;
    whole /= 2;
    n     /= 2;
}

void team_size::settle(int n_now) {
    if (n_now != n) {
        n      = n_now;
        used   = {};
        n_used = 0;
    }
    n_try = 0;
}

void team_size::try_size(int n_other, reason r, double now) {
    n_try = n_other;
    why   = r;
    tried = {};
    began = now;
}

team_size::told team_size::judge(double now) {
    const bool more = why == reason::more;
    if (tried.n > 0 && tried.mean() < BETTER*used.mean()) {
        const bool tells = more ? gave_way : why == reason::stalls; // else it says nothing of other kinds
        patience & back  = more ? down : up;
        back = {};
        back.lose(now, more || tells ? UP_FIRST : SMALL_FIRST, UP_MOST);
        settle(n_try);
        in_steps = false;
        gave_way = n < n_most && (gave_way || tells);
        return !tells ? told::nothing : more ? told::more : told::fewer;
    }
    if (more) {
        in_steps = n_try > n + step_of(n);
        up.lose(now, UP_FIRST, UP_MOST);
    } else if (why != reason::small) {
        down.lose(now, DOWN_FIRST, DOWN_MOST);
    }
    settle(n);
    return told::nothing;
}

void team_size::hear_fewer(int n_other) {
    if (n_other < n) {
        settle(n_other);
        gave_way = true;
    }
}

team_size::told team_size::saw(const team_launch & launch, double stalls, double now, double free_cores) {
    if (launch.n < launch.asked) { // the system has no more threads
        n_most = std::min(n_most, launch.n);
        settle(std::min(n, n_most));
    }
    if (n_most == 1 || launch.n != choose()) {
        return told::nothing;
    }
    if (launch.quota != quota) { // what was measured before were other costs
        quota  = launch.quota;
        used   = {};
        n_used = 0;
        n_try  = 0;
        return told::nothing;
    }
    if (n_try) {
        tried.add(launch);
        const bool   worse  = tried.mean() > WORSE*used.mean() && tried.whole >= TRIAL_SECONDS/4;
        const bool   enough = tried.n >= TRIAL_GRAPHS || tried.whole >= UP_SECONDS;
        const double least  = n_try > n ? UP_SECONDS : TRIAL_SECONDS;
        return worse || (enough && (tried.whole >= least || now - began >= LONGEST_TRIAL)) ? judge(now) : told::nothing;
    }
    if (used.whole > LATELY_SECONDS) {
        used.forget_half();
    }
    used.add(launch);
    n_used++;
    if (n_used < TRIAL_GRAPHS && used.whole < UP_SECONDS) {
        return told::nothing;
    }
    if (n > 1 && stalls > 0 && now >= down.next) {
        try_size(n - (stalls > MUCH_STALLED ? n/2 : step_of(n)), reason::stalls, now);
    } else if (n > 1 && quota > 0 && n > quota && now >= down.next) {
        try_size(n - step_of(n), reason::quota, now);
    } else if (n > 1 && n_used >= SMALL_GRAPHS && launch.whole < SMALL_SECONDS && now >= small.next) {
        small.lose(now, SMALL_FIRST, SMALL_MOST);
        try_size(n - n/2, reason::small, now);
    } else if (n < n_most && now >= up.next && (free_cores >= FREE_CORES || free_cores < 0)) {
        try_size(std::min(n_most, n + (in_steps ? step_of(n) : n)), reason::more, now);
    }
    return told::nothing;
}

team_size & team_sizes::of(uint64_t kind, int n_most, double now) {
    const uint64_t key   = 521*kind + n_most;
    entry * const  first = &entries[key*0x9e3779b97f4a7c15u >> 56];
    entry *        place = std::find_if(first, first + PLACES, [&](const entry & e) { return e.kind == key; });
    if (place == first + PLACES) {
        const auto earlier = [](const entry & a, const entry & b) { return a.used < b.used; };
        place  = std::min_element(first, first + PLACES, earlier);
        *place = { key, 0, 0, team_size(n_most) };
    }
    place->used = ++n_asked;
    if (place->heard != news.number) {
        place->heard = news.number;
        if (news.n_most == n_most && now - news.when < NEWS_SECONDS) {
            news.what == team_size::told::fewer ? place->size.hear_fewer(news.n) : place->size.hear_more();
        }
    }
    return place->size;
}

team_sizes::choice team_sizes::choose(uint64_t kind, int n_most, double now) {
    const team_size & size = of(kind, n_most, now);
    return { size.choose(), size.trying() };
}

void team_sizes::saw(uint64_t kind, int n_most, const team_launch & launch, double now, double free_cores) {
    const double    stalled = launch.n > 1 ? stalls.saw(launch) : 0;
    team_size &     size    = of(kind, n_most, now);
    team_size::told what    = size.saw(launch, stalled, now, free_cores);
    if (what == team_size::told::nothing) {
        return;
    }
    n_changes += what != news.what || n_most != news.n_most;
    news = { what, size.choose(), n_most, now, news.number + 1 };
}
