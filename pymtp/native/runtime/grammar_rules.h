// The rules of a grammar, parsed from GBNF, in the form that pymtp_grammar_states matches.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct pymtp_grammar_rules {
    enum kind : uint32_t {
        END,       // the end of an alternate; value is unused
        RULE,      // a reference to a rule; value: the index of the rule
        CHARACTER, // one character; value: its code point
        CLASS,     // one character of a class; value: the class's index in `classes`
        TOKEN,     // one token; value: its id
        NOT_TOKEN, // any token except one; value: the excluded token's id
    };
    struct element {
        kind     type;
        uint32_t value;
    };
    struct range { // the code points from first to last, both included
        uint32_t first;
        uint32_t last;
    };

    std::vector<element>               elements;   // the elements of all alternates, one alternate after another
    // for each rule: the index in `elements` of the start of each of its alternates
    std::vector<std::vector<uint32_t>> alternates;
    std::vector<std::vector<range>>    classes;    // each class as sorted ranges that neither overlap nor touch
    uint32_t                           root = 0;
    bool                               has_tokens = false;
};

// Parses a grammar in GBNF. Throws std::runtime_error when the text is not a valid grammar, or when the grammar cannot
// be used to match text.
pymtp_grammar_rules pymtp_read_grammar(const llama_vocab * vocab, const char * text);

// Throws std::runtime_error when llama.cpp's parser would need too much memory or stack for the text: the parser
// recurses for each group, writes out repetitions, and gives each group and repetition a name that contains the rule's
// name. Syntax errors are not reported here, but by that parser.
void pymtp_check_grammar_text(const char * text);
