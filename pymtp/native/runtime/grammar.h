// What a text may be: a grammar in GBNF, with a state for each prefix instead of one that moves with the text.
#pragma once

#include "grammar_rules.h"
#include "grammar_states.h"
#include "spelling.h"
#include "token_set.h"

#include "llama.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

// A grammar, read for a vocabulary. Shared by the samplers that follow it; never changes.
struct pymtp_grammar {
    std::shared_ptr<llama_model>               model; // for its vocabulary
    std::shared_ptr<const pymtp_spelling>      spelling;
    std::shared_ptr<const pymtp_grammar_rules> rules;
};

// Where a text stands in a grammar. Goes to any prefix that begins where the grammar begins: rejected tokens leave no
// trace, for the states before them are kept. Where a grammar has too many ways to go on, no token may follow.
class pymtp_grammar_walk {
public:
    // Throws pymtp_grammar_states::too_many for a grammar that has too many ways to begin.
    explicit pymtp_grammar_walk(const pymtp_grammar & source);

    // From now on the grammar's text begins with the token after the first n of a prefix.
    void begin(size_t n);

    // Goes to the n tokens of a prefix. False when the grammar does not allow them.
    bool go_to(const llama_token * prefix, size_t n);

    // Whether each of the tokens may follow, up to the first `most` of those that may; and all that may.
    void allowed(const std::vector<llama_token> & tokens, size_t most, std::vector<bool> & out);
    const pymtp_token_set & all_allowed();

private:
    // A token that the grammar names is one element of it, whatever its bytes; all others are read as characters.
    struct position {
        uint32_t                whole;   // the state between two elements
        uint32_t                within;  // the state of those that are within a character,
        pymtp_partial_character partial; // which is this
    };

    bool take(position & at, llama_token token);
    void find_all(const position & at, pymtp_token_set & out);
    void find_texts(uint32_t state, pymtp_token_set & out);
    void find_tokens(uint32_t state, pymtp_token_set & out) const;
    void forget();

    pymtp_grammar        source;
    pymtp_grammar_states states;
    position             initial;

    size_t                   n_begin = 0;
    std::vector<llama_token> taken;     // since the grammar began
    std::deque<position>     positions; // the newest after the last of them

    std::unordered_map<uint32_t, pymtp_token_set> masks; // what may follow, by state
    pymtp_token_set                               mask;  // within a character
    std::vector<uint32_t>                         scratch;
};
