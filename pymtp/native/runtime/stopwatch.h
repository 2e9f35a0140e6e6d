// A stopwatch that starts when it is constructed, and adds the elapsed seconds to `total` when it is destroyed.
#pragma once

#include <chrono>

class pymtp_stopwatch {
public:
    explicit pymtp_stopwatch(double & total) : total(total), start(std::chrono::steady_clock::now()) {}
    ~pymtp_stopwatch() { total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

private:
    double & total;
    std::chrono::steady_clock::time_point start;
};
