// Functions to sleep until a number in memory changes: a futex on Linux, or the system's equivalent.
#pragma once

#include <atomic>
#include <cstdint>

// Sleeps while the word has the value `value`, for at most `microseconds` (0: no limit). May return earlier, even
// though the word has not changed.
void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds);

// Wakes all threads that sleep on the word.
void pymtp_wake_all(std::atomic<uint32_t> & word);
