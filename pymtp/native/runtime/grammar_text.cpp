// What of a grammar's text is checked before llama.cpp's parser reads it.
#include "grammar_rules.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

constexpr size_t most_nested      = 200;
constexpr size_t most_elements    = 2'000'000; // 8 bytes each, in llama.cpp's rules and once more in ours
constexpr size_t most_repetitions = 2000;      // llama.cpp's MAX_REPETITION_THRESHOLD; above, a maximum is none
constexpr size_t most_name        = 256;       // bytes of a token's name: llama.cpp tokenizes it
constexpr size_t rule_cost        = 16;        // a rule's memory besides its elements and its name, in elements

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

class reader {
public:
    explicit reader(const char * text) : at(text) {}

    void read() {
        while (*at) {
            const char c = *at;
            if (c == '"' || c == '[') {
                size = quoted(c == '"' ? '"' : ']');
            } else if (c == '<') {
                token();
            } else if (c == '#') {
                at += std::strcspn(at, "\r\n");
            } else if (is_word(c)) {
                const char * begin = at;
                while (is_word(*at)) {
                    ++at;
                }
                word = at - begin;
                size = 1;
            } else if (c == ':') { // of ::=
                name = word;
                ++at;
            } else if (c == '(') {
                spend(rule());
                if (++n_open > most_nested) {
                    throw std::runtime_error("groups are nested more than " + std::to_string(most_nested) + " deep");
                }
                ++at;
            } else if (c == ')') {
                n_open -= n_open > 0;
                size = 1;
                ++at;
            } else if (c == '.') {
                size = 1;
                ++at;
            } else if (c == '*' || c == '+' || c == '?') {
                repeat(c == '+', c == '?' ? 1 : no_maximum);
                ++at;
            } else if (c == '{') {
                repetitions();
            } else {
                ++at;
            }
        }
    }

private:
    static constexpr size_t no_maximum = SIZE_MAX;

    size_t rule() const {
        return rule_cost + name / 8;
    }

    void spend(size_t n) {
        n_elements += n;
        if (n_elements > most_elements) {
            throw std::runtime_error("the grammar comes to more than " + std::to_string(most_elements) + " elements");
        }
    }

    // A literal or a class, to its end: how many characters it has at most.
    size_t quoted(char end) {
        const char * begin = ++at;
        while (*at && *at != end) {
            at += *at == '\\' && at[1] ? 2 : 1;
        }
        const size_t n = at - begin;
        at += *at != 0;
        spend(n);
        return n;
    }

    void token() {
        const size_t n = std::strcspn(at, ">");
        if (n > most_name) {
            throw std::runtime_error("a token's name is longer than " + std::to_string(most_name) + " bytes");
        }
        at += n;
        size = 1;
    }

    size_t number() {
        size_t n = 0;
        for (; *at >= '0' && *at <= '9'; ++at) {
            n = std::min(10 * n + (*at - '0'), most_repetitions + 1);
        }
        return n;
    }

    void space() {
        while (*at && std::strchr(" \t\r\n#", *at)) {
            at += *at == '#' ? std::strcspn(at, "\r\n") : 1;
        }
    }

    // {n}, {n,} or {n,m}; for anything else, llama.cpp says what is wrong
    void repetitions() {
        ++at;
        space();
        const size_t least = number();
        size_t most = least;
        space();
        if (*at == ',') {
            ++at;
            space();
            const char * digits = at;
            most = number();
            most = at == digits || most > most_repetitions ? no_maximum : most;
        }
        if (least > most_repetitions) {
            throw std::runtime_error("a number of repetitions is more than " + std::to_string(most_repetitions));
        }
        if (most < least) {
            throw std::runtime_error("a repetition's maximum is less than its minimum");
        }
        repeat(least, most);
    }

    void repeat(size_t least, size_t most) {
        const size_t n_rules = most == no_maximum ? 1 : most - least;
        spend(size * least + n_rules * (size + rule()));
        size = size * least + (n_rules > 0);
    }

    const char * at;
    size_t n_elements = 0;
    size_t n_open     = 0;
    size_t word       = 0; // bytes of the newest word,
    size_t name       = 0; // and of the rule's name
    size_t size       = 0; // elements of what a repetition would repeat, at most
};

} // namespace

void pymtp_check_grammar_text(const char * text) {
    reader(text).read();
}
