// Work on a thread of its own that computes only in turns, which another thread gives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// One thread at a time, the owner, calls all functions but `pause`. The destructor ends the work.
class pymtp_turns {
public:
    pymtp_turns() = default;
    ~pymtp_turns();
    pymtp_turns(const pymtp_turns &) = delete;
    pymtp_turns & operator=(const pymtp_turns &) = delete;

    // Begins the work. It runs at once up to its first pause.
    // work: must not throw, and should return soon after `pause` has returned false.
    void begin(std::function<void()> work);

    // Returns whether there is work: from `begin` on until `advance` has returned true, or `end` was called.
    bool begun() const { return thread.joinable(); }

    // Gives the work a turn, and waits until it pauses after `seconds` or later, or ends. Before the first pause it
    // waits for `seconds` at most. Returns whether the work has ended. Throws std::runtime_error in a forked child.
    bool advance(double seconds);

    // Ends the work at its next pause, and waits for it.
    void end();

    // Called by the work: waits for the next turn if this one is over. Returns false if the work should end.
    bool pause();

private:
    using clock = std::chrono::steady_clock;

    // `free`: it has not come to its first pause; `waiting` for a turn; `running` in its turn.
    enum class state { free, waiting, running, ended };

    // What both threads use.
    struct shared_state {
        std::mutex              mutex;
        std::condition_variable changed;
        clock::time_point       turn_ends;
        state                   now    = state::free;
        bool                    ending = false;

        bool in_turn() const { return now == state::free || now == state::running; }
    };

    std::thread                   thread;
    std::unique_ptr<shared_state> shared;
    int64_t                       process = 0; // that has the thread: a forked child has none

    bool is_lost() const;
};
