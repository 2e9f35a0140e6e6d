// A grammar's rules, from GBNF, in the form that texts are held to.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct pymtp_grammar_rules {
    enum kind : uint32_t {
        END,       // of an alternate
        RULE,      // value: which
        CHARACTER, // value: the character
        CLASS,     // value: index in classes
        TOKEN,     // value: the token
        NOT_TOKEN, // any other
    };
    struct element {
        kind     what;
        uint32_t value;
    };
    struct range { // of characters
        uint32_t first;
        uint32_t last;
    };

    std::vector<element>               elements;   // of one alternate after another
    std::vector<std::vector<uint32_t>> alternates; // of each rule: where they begin in elements
    std::vector<std::vector<range>>    classes;    // sorted, apart from each other
    uint32_t                           root = 0;
    bool                               has_tokens = false;
};

// Throws std::runtime_error for what is no grammar, or one that no text can be held to.
pymtp_grammar_rules pymtp_read_grammar(const llama_vocab * vocab, const char * text);

// Throws std::runtime_error for a text that llama.cpp's parser would take too far: it recurses for each group, writes
// repetitions out, and gives each group and each repetition a name that begins with its rule's. Otherwise it says
// nothing of a text that is no grammar.
void pymtp_check_grammar_text(const char * text);
