// Waiting for a number in memory to change, asleep.
#pragma once

#include <atomic>
#include <cstdint>

// Returns when the word is not `value` any more, or after so many microseconds (0: never), or earlier.
void pymtp_sleep_while(std::atomic<uint32_t> & word, uint32_t value, int microseconds);

// Wakes all threads that sleep on the word.
void pymtp_wake_all(std::atomic<uint32_t> & word);
