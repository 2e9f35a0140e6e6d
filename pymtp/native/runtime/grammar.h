// Constrains text by a grammar in GBNF. Unlike llama.cpp's, its state does not move: there is a state for each prefix.
#pragma once

#include "grammar_rules.h"
#include "grammar_states.h"
#include "token_codepoints.h"
#include "token_set.h"

#include "llama.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

// A parsed grammar for a vocabulary. Immutable, and shared by the samplers that use it.
struct pymtp_grammar {
    std::shared_ptr<llama_model>               model; // keeps the vocabulary alive
    std::shared_ptr<const pymtp_token_codepoints>      codepoints;
    std::shared_ptr<const pymtp_grammar_rules> rules;
};

// Matches a text against a grammar. It can go to any prefix that includes the grammar's start: the states of earlier
// tokens are stored, so rejected drafts leave no trace. When a grammar has too many alternatives to track, it allows
// no token.
class pymtp_grammar_matcher {
public:
    // Throws pymtp_grammar_states::too_many for a grammar with too many alternatives at its start.
    explicit pymtp_grammar_matcher(const pymtp_grammar & source);

    // Lets the grammar's text start after the first n tokens of a prefix.
    void begin(size_t n);

    // Goes to a prefix of n tokens. Returns false when the grammar does not allow it.
    bool go_to(const llama_token * prefix, size_t n);

    // Tells for each of the tokens whether it may follow, until `limit` of them may. all_allowed() returns all that
    // may.
    void allowed(const std::vector<llama_token> & tokens, size_t limit, std::vector<bool> & out);
    const pymtp_token_set & all_allowed();

private:
    // A token that the grammar names is matched as one element, whatever its bytes; other tokens are matched as
    // characters.
    struct position {
        uint32_t                state;         // the state at a character boundary
        uint32_t                partial_state; // the state within an incomplete character,
        pymtp_partial_utf8 partial;            // which is this one
    };

    bool accept(position & at, llama_token token);
    void fill_allowed(const position & at, pymtp_token_set & out);
    void add_texts(uint32_t state, pymtp_token_set & out);
    void add_named_tokens(uint32_t state, pymtp_token_set & out) const;
    void compact();

    pymtp_grammar        source;
    pymtp_grammar_states states;
    position             initial;

    size_t                   n_begin = 0;
    std::vector<llama_token> accepted;  // tokens since the grammar's start
    std::deque<position>     positions; // the newest one is after the last of these tokens

    // the allowed tokens by state, at character boundaries
    std::unordered_map<uint32_t, pymtp_token_set> allowed_by_state;
    pymtp_token_set                               allowed_buffer; // scratch, and the allowed tokens within a character
    std::vector<uint32_t>                         scratch;
};
