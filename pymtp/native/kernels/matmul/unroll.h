// Unrolled loops: the compiler keeps elements of small arrays in registers only if their indexes are constants.

#pragma once

#include <utility>

namespace pymtp {

template <int... I, typename F> static inline void unroll(std::integer_sequence<int, I...>, F f) {
    (f(std::integral_constant<int, I>()), ...);
}

// Calls f(0) to f(R - 1) without a loop. f must be inlined: with calls, single rows of IQ2_XXS take 1.5 times as long.
template <int R, typename F> static inline void unroll(F f) {
    unroll(std::make_integer_sequence<int, R>(), f);
}

}  // namespace pymtp
