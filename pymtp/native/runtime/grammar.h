// What a text may be: llama.cpp's grammars, with a state for each prefix instead of one that moves with the text.
#pragma once

#include "llama.h"
#include "llama-grammar.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

struct pymtp_grammar_deleter {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};
using pymtp_grammar_ptr = std::unique_ptr<llama_grammar, pymtp_grammar_deleter>;

// The tokens of a vocabulary as grammars see them: characters. Groups by the first two save looking at each token.
struct pymtp_spelling {
    explicit pymtp_spelling(const llama_vocab * vocab);

    enum kind : uint8_t {
        TEXT,   // begins with a character, or the first bytes of one
        WITHIN, // no text by itself: goes on with the bytes of a character, or cannot be in a text
        SILENT, // control tokens: no text, though llama.cpp reads their names as such
        END,    // ends the generation
    };
    struct group {
        uint32_t key[3]; // one or two characters and a 0, as llama.cpp ends a token's
        size_t   begin;  // its part of pairs, or of tokens
        size_t   end;
    };

    std::vector<kind>               kinds;
    std::vector<size_t>             at;         // of a token's first character in characters
    std::vector<uint32_t>           characters; // those of each TEXT token, then 0
    std::vector<llama_partial_utf8> rest;       // what an incomplete last character has come to
    std::vector<group>              firsts;
    std::vector<group>              pairs;
    std::vector<llama_token>        tokens;     // TEXT tokens with a first character, by groups
    std::vector<llama_token>        split;      // TEXT tokens with only a part of it
    std::vector<llama_token>        within;
    std::vector<llama_token>        ends;
};

// A grammar's text, parsed for a vocabulary. Shared by the samplers that follow it; never changes.
struct pymtp_grammar {
    std::shared_ptr<llama_model>          model;
    const llama_vocab *                   vocab;
    std::shared_ptr<const pymtp_spelling> spelling;
    std::shared_ptr<const llama_grammar>  start;
};

// Where a text stands in a grammar. Goes to any prefix that begins where the grammar begins: rejected tokens leave no
// trace, for the states before them are kept. Never throws: what llama.cpp cannot go on with is outside the grammar.
class pymtp_grammar_walk {
public:
    explicit pymtp_grammar_walk(const pymtp_grammar & source);

    // From now on the grammar's text begins with the token after the first n of a prefix.
    void begin(size_t n);

    // Goes to the n tokens of a prefix. False when the grammar does not allow them.
    bool go_to(const llama_token * prefix, size_t n);

    // Whether each of the tokens may follow; and all that may, by token.
    void allowed(const std::vector<llama_token> & tokens, std::vector<bool> & out);
    const std::vector<bool> & all_allowed();

private:
    struct state {
        llama_grammar_stacks stacks;
        llama_partial_utf8   partial_utf8;
        std::string          pending; // bytes of a character that is not complete
        std::vector<bool>    allowed; // empty until asked for
    };

    bool accept(llama_token token);
    void keep();
    void restore(const state & from);
    void reject(llama_grammar_candidates & candidates) const;
    void find_all(std::vector<bool> & out);

    pymtp_grammar     source;
    pymtp_grammar_ptr grammar; // its stacks are those of the newest state
    std::string       pending;
    state             initial;

    size_t                   n_begin = 0;
    std::vector<llama_token> taken;  // since the grammar began
    std::deque<state>        states; // the newest after the last of them

    llama_grammar_candidates          candidates;
    std::deque<std::vector<uint32_t>> joined; // characters of tokens that go on with the pending bytes
    std::vector<llama_token>          likely; // see find_all
};
