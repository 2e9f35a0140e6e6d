#include "grammar_rules.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

namespace {

using rules   = pymtp_grammar_rules;
using element = pymtp_grammar_rules::element;
using range   = pymtp_grammar_rules::range;

constexpr uint32_t last_character = 0x10FFFF;

// Returns the ranges sorted, with overlapping and touching ranges merged.
std::vector<range> merged(std::vector<range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](range a, range b) { return a.first < b.first; });
    std::vector<range> out;
    for (const auto & [first, last] : ranges) {
        if (first > last || first > last_character) {
            continue;
        }
        if (out.empty() || first > out.back().last + 1) {
            out.push_back({first, 0});
        }
        out.back().last = std::max(out.back().last, std::min(last, last_character));
    }
    return out;
}

std::vector<range> complement(const std::vector<range> & ranges) {
    std::vector<range> out;
    uint32_t next = 0;
    for (const auto & [first, last] : ranges) {
        if (first > next) {
            out.push_back({next, first - 1});
        }
        next = last + 1;
    }
    if (next <= last_character) {
        out.push_back({next, last_character});
    }
    return out;
}

// Converts llama.cpp's rules to ours. llama.cpp has several elements for a character class; they become one element.
class converter {
public:
    explicit converter(const llama_grammar_rules & from) {
        out.alternates.resize(from.size());
        for (size_t i = 0; i < from.size(); ++i) {
            convert(from[i], out.alternates[i]);
        }
    }

    rules out;

private:
    void convert(const llama_grammar_rule & rule, std::vector<uint32_t> & alternates) {
        bool fresh = true;
        for (size_t i = 0; i < rule.size();) {
            if (fresh) {
                alternates.push_back(out.elements.size());
            }
            const llama_grammar_element from = rule[i];
            fresh = from.type == LLAMA_GRETYPE_END || from.type == LLAMA_GRETYPE_ALT;
            switch (from.type) {
                case LLAMA_GRETYPE_END:
                case LLAMA_GRETYPE_ALT:       add(rules::END, 0); break;
                case LLAMA_GRETYPE_RULE_REF:  add(rules::RULE, from.value); break;
                case LLAMA_GRETYPE_TOKEN:     add(rules::TOKEN, from.value); break;
                case LLAMA_GRETYPE_TOKEN_NOT: add(rules::NOT_TOKEN, from.value); break;
                case LLAMA_GRETYPE_CHAR_ANY:  add_class({{0, last_character}}); break;
                case LLAMA_GRETYPE_CHAR:
                case LLAMA_GRETYPE_CHAR_NOT:  i = convert_class(rule, i); continue;
                default:                      throw std::runtime_error("it has an element that is not known");
            }
            ++i;
        }
    }

    // Converts the class that starts with the element at i. Returns the index of the element after the class.
    size_t convert_class(const llama_grammar_rule & rule, size_t i) {
        const bool inverse = rule[i].type == LLAMA_GRETYPE_CHAR_NOT;
        std::vector<range> ranges;
        do {
            // i + 1 is a valid index, because the last element is END
            const bool to = rule[i + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
            ranges.push_back({rule[i].value, rule[i + to].value});
            i += 1 + to;
        } while (rule[i].type == LLAMA_GRETYPE_CHAR_ALT);
        if (!inverse && ranges.size() == 1 && ranges[0].first == ranges[0].last) {
            add(rules::CHARACTER, ranges[0].first);
        } else {
            ranges = merged(std::move(ranges));
            add_class(inverse ? complement(ranges) : ranges);
        }
        return i;
    }

    void add_class(const std::vector<range> & ranges) {
        std::vector<uint32_t> key;
        for (const auto & [first, last] : ranges) {
            key.insert(key.end(), {first, last});
        }
        const auto [known, fresh] = classes.emplace(std::move(key), out.classes.size());
        if (fresh) {
            out.classes.push_back(ranges);
        }
        add(rules::CLASS, known->second);
    }

    void add(rules::kind type, uint32_t value) {
        out.has_tokens |= type == rules::TOKEN || type == rules::NOT_TOKEN;
        out.elements.push_back({type, value});
    }

    std::map<std::vector<uint32_t>, uint32_t> classes;
};

// Returns for each rule whether it can match the empty text: whether one of its alternates consists only of rules that
// can.
std::vector<bool> find_empty(const rules & of) {
    struct alternate {
        uint32_t rule;
        size_t   n_left; // number of its rules that are not yet known to match the empty text
    };
    std::vector<bool> empty(of.alternates.size());
    std::vector<alternate> waiting;
    // for each rule: the alternates in `waiting` that contain the rule
    std::vector<std::vector<size_t>> uses(of.alternates.size());
    std::vector<uint32_t> found;
    const auto find = [&](uint32_t rule) {
        if (!empty[rule]) {
            empty[rule] = true;
            found.push_back(rule);
        }
    };
    for (uint32_t rule = 0; rule < of.alternates.size(); ++rule) {
        for (const uint32_t begin : of.alternates[rule]) {
            uint32_t end = begin;
            while (of.elements[end].type == rules::RULE) {
                ++end;
            }
            if (of.elements[end].type != rules::END) {
                continue;
            }
            if (begin == end) {
                find(rule);
            }
            for (uint32_t i = begin; i < end; ++i) {
                uses[of.elements[i].value].push_back(waiting.size());
            }
            waiting.push_back({rule, end - begin});
        }
    }
    while (!found.empty()) {
        const uint32_t rule = found.back();
        found.pop_back();
        for (const size_t use : uses[rule]) {
            if (--waiting[use].n_left == 0) {
                find(waiting[use].rule);
            }
        }
    }
    return empty;
}

// Returns a left-recursive rule: one that may begin with itself, directly or through other rules. Returns the number of
// rules if there is none.
uint32_t find_left_recursion(const rules & of) {
    struct visit {
        uint32_t rule;
        size_t   alternate;
        // index of the alternate's element to visit next; all elements before it can match the empty text
        uint32_t next;
    };
    const std::vector<bool> empty = find_empty(of);
    std::vector<bool>  met(of.alternates.size());
    std::vector<bool>  open(of.alternates.size());
    std::vector<visit> path;
    const auto enter = [&](uint32_t rule) {
        met[rule] = open[rule] = true;
        path.push_back({rule, 0, of.alternates[rule][0]});
    };
    for (uint32_t rule = 0; rule < of.alternates.size(); ++rule) {
        if (!met[rule]) {
            enter(rule);
        }
        while (!path.empty()) {
            visit & top = path.back();
            const std::vector<uint32_t> & alternates = of.alternates[top.rule];
            if (top.alternate == alternates.size()) {
                open[top.rule] = false;
                path.pop_back();
                continue;
            }
            const element first = of.elements[top.next++];
            if ((first.type != rules::RULE || !empty[first.value]) && ++top.alternate < alternates.size()) {
                top.next = alternates[top.alternate];
            }
            if (first.type == rules::RULE && open[first.value]) {
                return first.value;
            }
            if (first.type == rules::RULE && !met[first.value]) {
                enter(first.value);
            }
        }
    }
    return of.alternates.size();
}

const char * skip_space(const char * text) {
    while (*text && std::strchr(" \t\r\n#", *text)) {
        text += *text == '#' ? std::strcspn(text, "\r\n") : 1;
    }
    return text;
}

} // namespace

pymtp_grammar_rules pymtp_read_grammar(const llama_vocab * vocab, const char * text) {
    pymtp_check_grammar_text(text);
    llama_grammar_parser parser(vocab);
    // parser.parse() would do the same, but would print an error together with the whole rest of the text.
    for (const char * at = skip_space(text); *at;) {
        at = parser.parse_rule(at);
    }
    const auto name_of = [&](uint32_t rule) {
        for (const auto & [name, id] : parser.symbol_ids) {
            if (id == rule) {
                // the name of a group is the name of its rule and a suffix "_N"
                return "'" + name.substr(0, name.find('_')) + "'";
            }
        }
        return std::string("?");
    };
    const auto root = parser.symbol_ids.find("root");
    if (root == parser.symbol_ids.end()) {
        throw std::runtime_error("it has no rule 'root'");
    }
    parser.rules.resize(parser.symbol_ids.size());
    for (uint32_t rule = 0; rule < parser.rules.size(); ++rule) {
        if (parser.rules[rule].empty()) {
            throw std::runtime_error("the rule " + name_of(rule) + " is nowhere defined");
        }
    }
    rules out = converter(parser.rules).out;
    out.root = root->second;
    const uint32_t recursive = find_left_recursion(out);
    if (recursive < out.alternates.size()) {
        throw std::runtime_error("left recursion detected for " + name_of(recursive));
    }
    return out;
}
