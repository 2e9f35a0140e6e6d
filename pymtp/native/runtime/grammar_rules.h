// The rules of a grammar, parsed from GBNF, in the form used for matching.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct pymtp_grammar_rules {
    enum kind : uint32_t {
        END,       // ends an alternate
        RULE,      // value: the rule
        CHARACTER, // value: the character
        CLASS,     // value: an index in classes
        TOKEN,     // value: the token
        NOT_TOKEN, // any token but value
    };
    struct element {
        kind     type;
        uint32_t value;
    };
    struct range { // characters from first to last
        uint32_t first;
        uint32_t last;
    };

    std::vector<element>               elements;   // all alternates, one after another
    std::vector<std::vector<uint32_t>> alternates; // for each rule: the start of its alternates in elements
    std::vector<std::vector<range>>    classes;    // sorted ranges with gaps between them
    uint32_t                           root = 0;
    bool                               has_tokens = false;
};

// Throws std::runtime_error when the text is not a grammar, or when it cannot be used to match text.
pymtp_grammar_rules pymtp_read_grammar(const llama_vocab * vocab, const char * text);

// Throws std::runtime_error when llama.cpp's parser would need too much for the text: the parser recurses for each
// group, writes out repetitions, and names each group and repetition after its rule. Syntax errors are left to that
// parser.
void pymtp_check_grammar_text(const char * text);
