// Sleeps until a number in memory changes: a futex, or the system's equivalent.
#pragma once

#include <atomic>
#include <cstdint>

// Sleeps while the word is `value`, for this many microseconds at most (0: without a limit). May return earlier.
void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds);

// Wakes all threads that sleep on the word.
void pymtp_wake_all(std::atomic<uint32_t> & word);
