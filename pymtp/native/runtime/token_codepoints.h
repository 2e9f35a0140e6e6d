// Represents the tokens of a vocabulary as sequences of code points, for matching against grammars.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Returns the bytes that a token contributes to a text: none for control tokens, except for markers such as <think>.
std::string pymtp_token_bytes(const llama_vocab * vocab, llama_token token);

// An incomplete UTF-8 character.
struct pymtp_partial_utf8 {
    uint32_t value  = 0; // the bits of the code point that were read so far
    int      n_more = 0; // number of missing bytes; 0 at a character boundary

    // Returns the lowest and the highest code point that the character can still become.
    std::pair<uint32_t, uint32_t> range() const;
};

struct pymtp_token_codepoints {
    explicit pymtp_token_codepoints(const llama_vocab * vocab);

    enum kind : uint8_t {
        TEXT,              // tokens that begin at a character boundary, with valid bytes
        CONTINUATION,      // tokens that begin within a character, or have invalid bytes
        CONTROL,           // control tokens, which have no text
        END_OF_GENERATION, // tokens that end the generation
    };
    struct text {
        const uint32_t *        begin;
        const uint32_t *        end;
        pymtp_partial_utf8 rest;
    };

    // Decodes a TEXT or CONTINUATION token after an incomplete character. Returns false when the bytes are not valid
    // UTF-8, or contain 0.
    // out: receives the code points, which are valid until the next call with the same `scratch`
    bool decode(llama_token token, pymtp_partial_utf8 before, text & out, std::vector<uint32_t> & scratch) const;

    const llama_vocab *      vocab;
    std::vector<kind>        kinds;
    std::vector<llama_token> continuations;
    std::vector<llama_token> end_tokens;
    std::vector<llama_token> sorted; // TEXT tokens, sorted by code points
    // for each token in `sorted`: the number of first code points that it has in common with the token before it
    std::vector<uint32_t>    shared;

private:
    std::vector<uint32_t>                codepoints; // code points of all TEXT tokens, concatenated
    // for each token, the index of its first code point in `codepoints`; then the end of the last token
    std::vector<size_t>                  offsets;
    std::vector<pymtp_partial_utf8> rest;
};
