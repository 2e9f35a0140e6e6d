// The tokens of a vocabulary as grammars see them: characters.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What a token is in a text: nothing for control tokens, but for the marks of answers such as <think>.
std::string pymtp_bytes_of(const llama_vocab * vocab, llama_token token);

// A character of UTF-8 whose last bytes are still to come.
struct pymtp_partial_character {
    uint32_t value  = 0; // the bits read so far
    int      n_more = 0; // bytes to come; 0: no character has begun

    // the first and the last character that it can become
    std::pair<uint32_t, uint32_t> range() const;
};

struct pymtp_spelling {
    explicit pymtp_spelling(const llama_vocab * vocab);

    enum kind : uint8_t {
        TEXT,   // can begin a text
        WITHIN, // cannot: goes on with the bytes of a character, or holds bytes that no text has
        SILENT, // control tokens: no text
        END,    // ends the generation
    };
    struct text {
        const uint32_t *        begin;
        const uint32_t *        end;
        pymtp_partial_character rest;
    };

    // The characters of a TEXT or WITHIN token after a partial one. False when the bytes are not UTF-8, or hold a 0.
    // out: valid until the next call with the same scratch
    bool read(llama_token token, pymtp_partial_character before, text & out, std::vector<uint32_t> & scratch) const;

    const llama_vocab *      vocab;
    std::vector<kind>        kinds;
    std::vector<llama_token> within;
    std::vector<llama_token> ends;
    std::vector<llama_token> sorted; // TEXT tokens by their characters,
    std::vector<uint32_t>    shared; // and how many of them each shares with the one before

private:
    std::vector<uint32_t>                characters; // of all TEXT tokens
    std::vector<size_t>                  at;         // where each token's begin, and the last one's end
    std::vector<pymtp_partial_character> rest;
};
