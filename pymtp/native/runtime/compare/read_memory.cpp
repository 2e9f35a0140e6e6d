#include "compare/pymtp_compare.h"

#include "api_guard.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using steady = std::chrono::steady_clock;

// Returns the sum of all words. Adds to many sums side by side, so that no load waits for an addition, and compilers
// vectorize the loop.
static uint64_t sum_of(const uint64_t * words, size_t n) {
    constexpr size_t width = 32;
    uint64_t sums[width] = {};
    for (size_t i = 0; i + width <= n; i += width) {
        for (size_t j = 0; j < width; ++j) {
            sums[j] += words[i + j];
        }
    }
    return std::accumulate(sums, sums + width, uint64_t{0});
}

// Throws when the machine has less memory than `bytes`: the operating system may allocate more memory than there is,
// and kill the process that writes to it.
static void check_there_is(size_t bytes) {
    const size_t total = pymtp_system_memory();
    const std::string words = std::to_string(bytes >> 20) + " MiB to read, and this machine has " +
            std::to_string(total >> 20) + " MiB";
    pymtp_require(bytes < total, words.c_str());
}

int pymtp_read_memory(size_t bytes, int32_t n_threads, int32_t n_times, double * seconds) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        pymtp_require(n_threads >= 1 && n_times >= 0, "threads are counted from one, times from zero");
        check_there_is(bytes);
        const size_t n = bytes / sizeof(uint64_t) / n_threads; // number of words that each thread reads
        const std::unique_ptr<uint64_t[]> words(new uint64_t[n * n_threads]);

        std::atomic<int32_t>  arrived{0}, begun{0}, ended{0};
        std::atomic<bool>     disabled{false};
        std::atomic<uint64_t> sum{0}; // a result that is used, so that compilers do not remove the reads
        steady::time_point    start;

        const auto read = [&](int32_t thread) {
            uint64_t * const mine = words.get() + n * thread;
            // written first, because all pages of unwritten memory are the same page of zeros
            std::fill(mine, mine + n, thread + 1);
            for (int32_t i = 0; i < n_times; ++i) {
                if (++arrived == n_threads * (i + 1)) {
                    start = steady::now();
                    begun = i + 1;
                }
                while (begun <= i) {
                    if (disabled) {
                        return;
                    }
                    std::this_thread::yield();
                }
                sum += sum_of(mine, n);
                if (++ended == n_threads * (i + 1)) {
                    seconds[i] = std::chrono::duration<double>(steady::now() - start).count();
                }
            }
        };
        std::vector<std::thread> threads;
        const auto join = [&] {
            for (std::thread & thread : threads) {
                thread.join();
            }
        };
        try {
            for (int32_t i = 1; i < n_threads; ++i) {
                threads.emplace_back(read, i);
            }
        } catch (...) { // the system refuses more threads
            disabled = true;
            join();
            throw;
        }
        read(0);
        join();
        return (int) PYMTP_OK;
    });
}
