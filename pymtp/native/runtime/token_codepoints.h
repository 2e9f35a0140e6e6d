// The tokens of a vocabulary as sequences of code points, for grammars.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Returns the bytes of a token in a text: none for control tokens, except markers such as <think>.
std::string pymtp_token_bytes(const llama_vocab * vocab, llama_token token);

// An incomplete UTF-8 character.
struct pymtp_partial_utf8 {
    uint32_t value  = 0; // the bits read so far
    int      n_more = 0; // missing bytes; 0 at a character boundary

    // returns the first and the last code point that it can become
    std::pair<uint32_t, uint32_t> range() const;
};

struct pymtp_token_codepoints {
    explicit pymtp_token_codepoints(const llama_vocab * vocab);

    enum kind : uint8_t {
        TEXT,              // can begin a text
        CONTINUATION,      // cannot: continues a character, or has invalid bytes
        CONTROL,           // control tokens, which have no text
        END_OF_GENERATION, // ends the generation
    };
    struct text {
        const uint32_t *        begin;
        const uint32_t *        end;
        pymtp_partial_utf8 rest;
    };

    // Decodes a TEXT or WITHIN token after a partial character. Returns false when the bytes are not valid UTF-8, or
    // contain 0.
    // out: valid until the next call with the same scratch
    bool decode(llama_token token, pymtp_partial_utf8 before, text & out, std::vector<uint32_t> & scratch) const;

    const llama_vocab *      vocab;
    std::vector<kind>        kinds;
    std::vector<llama_token> continuations;
    std::vector<llama_token> end_tokens;
    std::vector<llama_token> sorted; // TEXT tokens, sorted by code points
    std::vector<uint32_t>    shared; // for each of them: how many code points it shares with the one before

private:
    std::vector<uint32_t>                codepoints; // code points of all TEXT tokens
    // the start of each token in them, and the end of the last one
    std::vector<size_t>                  offsets;
    std::vector<pymtp_partial_utf8> rest;
};
