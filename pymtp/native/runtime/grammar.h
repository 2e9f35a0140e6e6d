// Constrains the generated text to a grammar in GBNF. Unlike in llama.cpp, a matcher keeps its earlier states, so that
// it can return to the state after any earlier token.
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

// A parsed grammar for one vocabulary. It is immutable, and all samplers that use the grammar share it.
struct pymtp_grammar {
    std::shared_ptr<llama_model>               model; // keeps the vocabulary alive
    std::shared_ptr<const pymtp_token_codepoints>      codepoints;
    std::shared_ptr<const pymtp_grammar_rules> rules;
};

// Matches the tokens of a sequence against a grammar. The states after earlier tokens are stored, so the matcher can go
// back when drafts are rejected. When the grammar has too many alternatives to track at some position, no token is
// allowed there.
class pymtp_grammar_matcher {
public:
    // Throws pymtp_grammar_states::too_many when the grammar has too many alternatives at its start.
    explicit pymtp_grammar_matcher(const pymtp_grammar & source);

    // Sets where matching starts: the first n tokens of a prefix are not matched against the grammar.
    void begin(size_t n);

    // Moves to the position after a prefix of n tokens. Returns false when the grammar does not allow the prefix.
    bool go_to(const llama_token * prefix, size_t n);

    // allowed() stores for each of the given tokens whether the grammar allows it next; it stops after `limit` allowed
    // tokens, and stores false for the rest. all_allowed() returns the set of all tokens that the grammar allows next.
    void allowed(const std::vector<llama_token> & tokens, size_t limit, std::vector<bool> & out);
    const pymtp_token_set & all_allowed();

private:
    // A position in the grammar's text. A token that the grammar names is matched as one element, whatever its bytes
    // are; other tokens are matched by their characters.
    struct position {
        uint32_t                state;         // the state, if the text so far ends at a character boundary
        uint32_t                partial_state; // the state, if the text so far ends within a character,
        pymtp_partial_utf8 partial;            // and the part of that character
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
    std::vector<llama_token> accepted;  // the tokens that were matched so far
    std::deque<position>     positions; // positions after the last few of the accepted tokens

    // for states at a character boundary: the tokens that the grammar allows next
    std::unordered_map<uint32_t, pymtp_token_set> allowed_by_state;
    // temporary, or the tokens that may follow an incomplete character
    pymtp_token_set                               allowed_buffer;
    std::vector<uint32_t>                         scratch;
};
