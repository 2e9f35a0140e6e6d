// Finds where the end of a text occurred before, and guesses from what followed there which tokens follow now.
//
// The index has hash chains, as zlib's search for matches has. A suffix automaton or a suffix tree would find the
// longest match among all earlier occurrences, but takes 60 bytes a token and more. This index takes at most
// 35 bytes a token, and looks at the most recent occurrences only, which are the most likely to go on alike.
#pragma once

#include "llama.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

// The occurrences of all n-grams of one length n in a list of tokens. (Those with LLAMA_TOKEN_NULL in them are never
// asked for.) An occurrence is named by its end: the number of
// tokens in the list up to its last one. A hash table with open addressing holds the latest occurrence of each n-gram,
// and a chain leads from each occurrence to the one before. Different n-grams never share a chain.
class pymtp_ngrams {
public:
    explicit pymtp_ngrams(size_t n) : n(n) {}

    // Makes room for n_new more tokens, so that `add` needs no memory.
    void reserve(const std::vector<llama_token> & tokens, size_t n_new);

    // Adds the n tokens before `end`, which is one more than at the last call.
    void add(const std::vector<llama_token> & tokens, uint32_t end) noexcept;

    // Return the latest occurrence of an n-gram, and the occurrence of the same n-gram before another one; 0: none.
    uint32_t last(const std::vector<llama_token> & tokens, const llama_token * gram) const;
    uint32_t before(uint32_t end) const { return previous[end - 1]; }

    size_t length() const { return n; } // in tokens
    size_t bytes() const { return (slots.capacity() + previous.capacity()) * sizeof(uint32_t); }

private:
    bool   is_at(const std::vector<llama_token> & tokens, uint32_t end, const llama_token * gram) const;
    size_t find_slot(const std::vector<llama_token> & tokens, const llama_token * gram) const;
    template <typename F> size_t probe(const llama_token * gram, F && fine) const;

    size_t                n;
    std::vector<uint32_t> slots;    // for each n-gram: the latest occurrence; 0: empty
    size_t                used = 0; // number of slots that are not empty
    std::vector<uint32_t> previous; // for each token: the occurrence before the one that ends with it; 0: none
};

// The tokens at the end of a text and the drafts that follow it: what is searched for.
class pymtp_text_end {
public:
    static constexpr size_t MAX_LENGTH = 64; // longer matches count as this long

    pymtp_text_end(const std::vector<llama_token> & text, const llama_token * drafts, size_t n_drafts);

    size_t              size() const { return n; }
    const llama_token * last(size_t n_last) const { return tokens.data() + tokens.size() - n_last; }

private:
    size_t n = 0;
    std::array<llama_token, MAX_LENGTH> tokens; // the last n are set
};

struct pymtp_text;

// An occurrence of the end of a text.
struct pymtp_occurrence {
    const pymtp_text * in;
    size_t             next;   // index of the token that follows it
    size_t             length; // number of equal tokens
};

// The tokens of a text, or of several ones, and an index of their n-grams.
struct pymtp_text {
    pymtp_text();

    // Appends tokens. LLAMA_TOKEN_NULL ends one text and begins another: no match and no continuation spans it. If
    // there is too little memory, throws std::bad_alloc and appends nothing.
    void add(const llama_token * tokens, size_t n);

    // Forgets all but the last n tokens, and builds the index anew.
    void keep_last(size_t n);

    size_t size() const { return all.size(); }
    size_t bytes() const; // bytes of host memory, reserved ones included
    const std::vector<llama_token> & tokens() const { return all; }

    // Appends the most recent occurrences of `end` whose next token has an index below `limit`. All of them have the
    // longer n-gram in common with `end`, or else the shorter one.
    void find(const pymtp_text_end & end, size_t limit, std::vector<pymtp_occurrence> & found) const;

private:
    std::vector<llama_token>    all;
    std::array<pymtp_ngrams, 2> ngrams; // the longer ones first
};

// A token that probably follows.
struct pymtp_guess {
    llama_token token;
    int32_t     length; // number of tokens before this guess that the longest occurrence has, too
    int32_t     votes;  // number of occurrences that continue with this token
    int32_t     of;     // number of occurrences that agree with all guesses before and continue with any token
};

// Guesses up to n_max tokens that follow `text` and then `drafts`, and returns their number. The guesses continue the
// recent occurrences of that end in `text` and in `other` whose matches are at least half as long as the longest. Each
// guess is the most frequent token among the occurrences that agree with all guesses before; if several tokens are
// equally frequent, it continues the longest match, then the most recent.
// other: earlier texts; may be null
size_t pymtp_guess_next(
        const pymtp_text & text, const pymtp_text * other, const llama_token * drafts, size_t n_drafts, size_t n_max,
        pymtp_guess * guesses);
