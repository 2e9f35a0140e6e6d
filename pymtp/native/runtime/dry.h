// Finds the tokens that would continue a repetition, for DRY ("don't repeat yourself"), a penalty that grows with the
// length of the repetition. The definition is that of llama.cpp and of koboldcpp, where DRY comes from.
#pragma once

#include "token_set.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

// The strings at which repetitions end, such as a line break, as tokens of one vocabulary. Immutable.
class pymtp_breaker_tokens {
public:
    pymtp_breaker_tokens(const llama_vocab * vocab, const std::vector<std::string> & strings);

    // Returns whether the token contains a whole string.
    bool has_whole(llama_token token) const { return whole.has(token); }

    // Returns the length of the longest breaker that starts with tokens[i], in tokens; 0 if none does.
    // n: number of tokens
    size_t match(const llama_token * tokens, size_t i, size_t n) const;

    int32_t n_vocab() const { return n_tokens; }

private:
    struct breaker {
        std::string          text;
        std::vector<int32_t> rests; // for the text after its first n bytes: the index of its tokens; -1: not known yet
    };

    void add(const llama_vocab * vocab, llama_token token, const std::string & text, breaker & breaker);
    int32_t index_of(const llama_vocab * vocab, const std::string & rest);

    int32_t         n_tokens;
    pymtp_token_set whole;
    std::vector<std::vector<llama_token>> rests; // each once
    // for tokens that end with the beginning of a string: indices of rests, of which one must follow. Only indices,
    // because a tenth of all tokens may end with the same letter.
    std::unordered_map<llama_token, std::vector<int32_t>> tails;
};

// A table that Python holds, and that all samplers share that were made with it.
struct pymtp_dry_breakers {
    std::shared_ptr<const pymtp_breaker_tokens> tokens;
};

class pymtp_repetitions {
public:
    // Returns for each token that would continue a repetition the length of the repetition so far: the largest number
    // of tokens at the end of the text that also stand before an earlier occurrence of the token. Leaves out shorter
    // repetitions than min_length, and does not look beyond the last breaker. The result is valid until the next call.
    // breakers: null for none
    const std::unordered_map<llama_token, int32_t> & find(
            const llama_token * tokens, size_t n, int32_t min_length, const pymtp_breaker_tokens * breakers);

private:
    std::unordered_map<llama_token, int32_t> lengths;
    std::vector<size_t>                      common; // see find()
};
