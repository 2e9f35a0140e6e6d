// Computes noise for sampling: the token with the highest sum of logit and Gumbel noise is a sample from the softmax
// distribution. The functions are defined in a header so that they are inlined, because they run for every candidate.
#pragma once

#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and Random123.
// Returns the first 52 bits of the four words for the counter {token, position, stream, 0}. Noise of tokens is
// stream 0.
inline uint64_t pymtp_philox(uint32_t token, uint32_t position, uint64_t seed, uint32_t stream = 0) {
    uint32_t c[4] = {token, position, stream, 0};
    uint32_t k[2] = {(uint32_t) seed, (uint32_t) (seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t) c[0] * 0xD2511F53u;
        const uint64_t b = (uint64_t) c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {
            (uint32_t) (b >> 32) ^ c[1] ^ k[0], (uint32_t) b, (uint32_t) (a >> 32) ^ c[3] ^ k[1], (uint32_t) a};
        std::copy(next, next + 4, c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return ((uint64_t) c[0] << 20) + (c[1] >> 12);
}

// Computes pymtp_philox for N tokens. Each round of the generator runs for all N tokens before the next round, so that
// compilers can vectorize the loop over tokens.
template <size_t N>
void pymtp_philox(const uint32_t (&tokens)[N], uint32_t position, uint64_t seed, uint64_t (&words)[N]) {
    uint32_t c[4][N];
    std::copy(tokens, tokens + N, c[0]);
    std::fill(c[1], c[1] + N, position);
    std::fill(c[2], c[2] + N, 0);
    std::fill(c[3], c[3] + N, 0);
    uint32_t k[2] = {(uint32_t) seed, (uint32_t) (seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < N; ++i) {
            const uint64_t a = (uint64_t) c[0][i] * 0xD2511F53u;
            const uint64_t b = (uint64_t) c[2][i] * 0xCD9E8D57u;
            c[0][i] = (uint32_t) (b >> 32) ^ c[1][i] ^ k[0];
            c[1][i] = (uint32_t) b;
            c[2][i] = (uint32_t) (a >> 32) ^ c[3][i] ^ k[1];
            c[3][i] = (uint32_t) a;
        }
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    for (size_t i = 0; i < N; ++i) {
        words[i] = ((uint64_t) c[0][i] << 20) + (c[1][i] >> 12);
    }
}

// Returns a number from the standard Gumbel distribution. It depends only on the arguments: the same token, position
// and seed always give the same number.
inline double pymtp_gumbel(llama_token token, int64_t position, uint64_t seed) {
    // a number with 52 bits; the 0.5 ensures that it is neither 0 nor 1
    const double uniform = ((double) pymtp_philox((uint32_t) token, (uint32_t) position, seed) + 0.5) * 0x1p-52;
    return -std::log(-std::log(uniform));
}

// Returns a number between 0 and 1 that depends only on the arguments, and that is independent of the noise of tokens.
inline double pymtp_uniform(int64_t position, uint64_t seed) {
    return ((double) pymtp_philox(0, (uint32_t) position, seed, 1) + 0.5) * 0x1p-52;
}
