// A set of tokens, with one bit for each token of the vocabulary.
#pragma once

#include "llama.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

class pymtp_token_set {
public:
    void clear(size_t n_tokens) {
        n = n_tokens;
        words.assign((n + 63) / 64, 0);
    }

    void set(llama_token token, bool is_member) {
        const uint64_t bit = (uint64_t) 1 << (token % 64);
        words[token / 64] = is_member ? words[token / 64] | bit : words[token / 64] & ~bit;
    }

    bool has(llama_token token) const { return words[token / 64] >> (token % 64) & 1; }

    // Copies the logits of the whole vocabulary, with -infinity for tokens that are not in the set. Blocks of 64 tokens
    // that are all in the set are copied at once, because most sets hold nearly all tokens, or nearly none.
    void mask_logits(const float * logits, float * out) const {
        for (size_t start = 0; start < n; start += 64) {
            const uint64_t word = words[start / 64];
            const size_t here = n - start < 64 ? n - start : 64;
            if (word == UINT64_MAX) {
                std::memcpy(out + start, logits + start, here * sizeof(float));
                continue;
            }
            for (size_t i = 0; i < here; ++i) {
                out[start + i] = word >> i & 1 ? logits[start + i] : -INFINITY;
            }
        }
    }

private:
    size_t                n = 0;
    std::vector<uint64_t> words;
};
