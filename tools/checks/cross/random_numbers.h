#pragma once

#include <random>
#include <vector>

// Normal ones, further ones with each call; in each run the same.
inline std::vector<float> random_numbers(size_t n) {
    static std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(n);
    for (float & x : numbers) {
        x = normal(generator);
    }
    return numbers;
}
