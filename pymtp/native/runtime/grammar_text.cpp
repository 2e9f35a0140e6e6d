// Checks how much memory and stack a grammar would need, before llama.cpp's parser reads it.
#include "grammar_rules.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

constexpr size_t max_nesting     = 200;
constexpr size_t max_elements    = 2'000'000; // an element takes 8 bytes in llama.cpp's rules, and 8 bytes in ours
// llama.cpp's MAX_REPETITION_THRESHOLD: llama.cpp ignores a larger maximum
constexpr size_t max_repetitions = 2000;
constexpr size_t max_name        = 256;       // maximum length in bytes of a token's name, which llama.cpp tokenizes
// memory that a rule takes beside its elements and its name, as a number of elements
constexpr size_t rule_cost       = 16;

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

class size_checker {
public:
    explicit size_checker(const char * text) : at(text) {}

    void read() {
        while (*at) {
            const char c = *at;
            if (c == '"' || c == '[') {
                repeated_size = skip_quoted(c == '"' ? '"' : ']');
            } else if (c == '<') {
                skip_token();
            } else if (c == '#') {
                at += std::strcspn(at, "\r\n");
            } else if (is_word(c)) {
                const char * begin = at;
                while (is_word(*at)) {
                    ++at;
                }
                word_size = at - begin;
                repeated_size = 1;
            } else if (c == ':') { // the first character of ::=
                name_size = word_size;
                ++at;
            } else if (c == '(') {
                spend(rule_size());
                if (++n_open > max_nesting) {
                    throw std::runtime_error("groups are nested more than " + std::to_string(max_nesting) + " deep");
                }
                ++at;
            } else if (c == ')') {
                n_open -= n_open > 0;
                repeated_size = 1;
                ++at;
            } else if (c == '.') {
                repeated_size = 1;
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

    size_t rule_size() const {
        return rule_cost + name_size / 8;
    }

    void spend(size_t n) {
        n_elements += n;
        if (n_elements > max_elements) {
            throw std::runtime_error("the grammar comes to more than " + std::to_string(max_elements) + " elements");
        }
    }

    // Skips a literal or a character class up to its end. Returns an upper bound for the number of its characters.
    size_t skip_quoted(char end) {
        const char * begin = ++at;
        while (*at && *at != end) {
            at += *at == '\\' && at[1] ? 2 : 1;
        }
        const size_t n = at - begin;
        at += *at != 0;
        spend(n);
        return n;
    }

    void skip_token() {
        const size_t n = std::strcspn(at, ">");
        if (n > max_name) {
            throw std::runtime_error("a token's name is longer than " + std::to_string(max_name) + " bytes");
        }
        at += n;
        repeated_size = 1;
    }

    size_t read_number() {
        size_t n = 0;
        for (; *at >= '0' && *at <= '9'; ++at) {
            n = std::min(10 * n + (*at - '0'), max_repetitions + 1);
        }
        return n;
    }

    void skip_space() {
        while (*at && std::strchr(" \t\r\n#", *at)) {
            at += *at == '#' ? std::strcspn(at, "\r\n") : 1;
        }
    }

    // Reads a repetition {n}, {n,} or {n,m}. Any other text in braces is left to llama.cpp, which reports the error.
    void repetitions() {
        ++at;
        skip_space();
        const size_t min_count = read_number();
        size_t max_count = min_count;
        skip_space();
        if (*at == ',') {
            ++at;
            skip_space();
            const char * digits = at;
            max_count = read_number();
            max_count = at == digits || max_count > max_repetitions ? no_maximum : max_count;
        }
        if (min_count > max_repetitions) {
            throw std::runtime_error("a number of repetitions is more than " + std::to_string(max_repetitions));
        }
        if (max_count < min_count) {
            throw std::runtime_error("a repetition's maximum is less than its minimum");
        }
        repeat(min_count, max_count);
    }

    void repeat(size_t min_count, size_t max_count) {
        const size_t n_rules = max_count == no_maximum ? 1 : max_count - min_count;
        spend(repeated_size * min_count + n_rules * (repeated_size + rule_size()));
        repeated_size = repeated_size * min_count + (n_rules > 0);
    }

    const char * at;
    size_t n_elements    = 0;
    size_t n_open        = 0;
    size_t word_size     = 0; // length in bytes of the word that was read last
    size_t name_size     = 0; // length in bytes of the name of the current rule
    size_t repeated_size = 0; // number of elements that a repetition at this place would repeat
};

} // namespace

void pymtp_check_grammar_text(const char * text) {
    size_checker(text).read();
}
