#include "grammar.h"

#include "border.h"
#include "host.h"
#include "model.h"
#include "pymtp.h"

#include <algorithm>
#include <exception>
#include <tuple>

namespace {

constexpr size_t most_states = 64; // a round goes back by fewer tokens; further back, the text is read again
constexpr size_t most_looks  = 50'000'000; // of a whole vocabulary of 248,320 tokens in ten stacks: 20,000,000

// Takes text apart, as llama.cpp's grammars do, which take any bytes that look like UTF-8 for it: here it must be, or
// what may yet become it. False when it cannot. tail: bytes at the end that are no whole character.
bool read_characters(const std::string & text, std::vector<uint32_t> & characters, llama_partial_utf8 & rest, size_t & tail) {
    rest = {0, 0};
    tail = 0;
    for (size_t i = 0; i < text.size();) {
        const uint32_t first = (uint8_t) text[i];
        const size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        // 80 to C1: within a character, or too long for it; from F5: beyond the last one; 0 ends llama.cpp's texts
        if (first == 0 || (first >= 0x80 && first < 0xC2) || first > 0xF4) {
            return false;
        }
        uint32_t character = more ? first & (0x3F >> more) : first;
        const size_t have = std::min(more, text.size() - i - 1);
        for (size_t j = 1; j <= have; ++j) {
            const uint32_t byte = (uint8_t) text[i + j];
            const uint32_t low  = j > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
            const uint32_t high = j > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
            if (byte < low || byte > high) { // The Unicode Standard, table 3-7
                return false;
            }
            character = (character << 6) + (byte & 0x3F);
        }
        if (have < more) {
            rest = {character, (int) (more - have)};
            tail = 1 + have;
            break;
        }
        characters.push_back(character);
        i += 1 + more;
    }
    characters.push_back(0);
    return true;
}

std::string text_of(const llama_vocab * vocab, llama_token token) {
    std::string text(64, '\0');
    int32_t n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, false);
    if (n < 0) {
        text.resize(-n);
        n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, false);
    }
    text.resize(std::max(n, 0));
    return text;
}

bool is_named(const llama_grammar_stacks & stacks, llama_token token) {
    return std::any_of(stacks.begin(), stacks.end(), [&](const llama_grammar_stack & stack) {
        return !stack.empty() && stack.back()->type == LLAMA_GRETYPE_TOKEN && stack.back()->value == (uint32_t) token;
    });
}

bool may_end(const llama_grammar_stacks & stacks) {
    return std::any_of(stacks.begin(), stacks.end(), [](const llama_grammar_stack & stack) { return stack.empty(); });
}

// What llama.cpp said, without the rest of the grammar that it ends with.
void set_grammar_error(const std::string & why) {
    constexpr size_t most = 200;
    pymtp_set_error(why);
    std::string text = pymtp_last_error();
    text = text.substr(0, text.find('\n'));
    if (text.size() > most) {
        text = text.substr(0, most) + " …";
    }
    pymtp_set_error(text);
}

} // namespace

pymtp_spelling::pymtp_spelling(const llama_vocab * vocab) {
    const llama_token n = llama_vocab_n_tokens(vocab);
    kinds.resize(n);
    at.resize(n);
    rest.resize(n);
    const auto key = [&](llama_token token) { // 0 for a second character that is not there
        const uint32_t * c = &characters[at[token]];
        return std::make_tuple(c[0], c[1], token);
    };
    for (llama_token token = 0; token < n; ++token) {
        const std::string text = text_of(vocab, token);
        size_t tail = 0;
        at[token] = characters.size();
        if (llama_vocab_is_eog(vocab, token)) {
            kinds[token] = END;
            ends.push_back(token);
        } else if (text.empty()) {
            kinds[token] = SILENT;
        } else if (!read_characters(text, characters, rest[token], tail)) {
            kinds[token] = WITHIN;
            characters.resize(at[token]);
            within.push_back(token);
        } else {
            (characters[at[token]] ? tokens : split).push_back(token);
        }
    }
    std::sort(tokens.begin(), tokens.end(), [&](llama_token a, llama_token b) { return key(a) < key(b); });
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto [first, second, token] = key(tokens[i]);
        if (firsts.empty() || firsts.back().key[0] != first) {
            firsts.push_back({{first, 0, 0}, pairs.size(), pairs.size()});
        }
        if (firsts.back().begin == pairs.size() || pairs.back().key[1] != second) {
            pairs.push_back({{first, second, 0}, i, i});
        }
        pairs.back().end  = i + 1;
        firsts.back().end = pairs.size();
    }
}

pymtp_grammar_walk::pymtp_grammar_walk(const pymtp_grammar & source)
    : source(source), grammar(llama_grammar_clone_impl(*source.start)),
      initial({grammar->stacks, grammar->partial_utf8, "", {}}) {}

void pymtp_grammar_walk::begin(size_t n) {
    n_begin = n;
    taken.clear();
    states.clear();
}

void pymtp_grammar_walk::restore(const state & from) {
    grammar->stacks       = from.stacks;
    grammar->partial_utf8 = from.partial_utf8;
    pending               = from.pending;
}

void pymtp_grammar_walk::keep() {
    states.push_back({grammar->stacks, grammar->partial_utf8, pending, {}});
    if (states.size() > most_states) {
        states.pop_front();
    }
}

// False when the token is outside the grammar; the stacks are of no use then.
bool pymtp_grammar_walk::accept(llama_token token) {
    switch (source.spelling->kinds[token]) {
        case pymtp_spelling::END:
            return may_end(grammar->stacks); // else llama.cpp ends the process
        case pymtp_spelling::SILENT:
            if (!is_named(grammar->stacks, token)) {
                return false;
            }
            break;
        default: {
            std::vector<uint32_t> characters;
            llama_partial_utf8 rest;
            size_t tail;
            const std::string text = pending + text_of(source.vocab, token);
            if (!read_characters(text, characters, rest, tail)) {
                return false;
            }
            pending = text.substr(text.size() - tail);
        }
    }
    try {
        llama_grammar_accept_impl(*grammar, token);
        return !grammar->stacks.empty();
    } catch (const std::exception &) {
        return false;
    }
}

bool pymtp_grammar_walk::go_to(const llama_token * prefix, size_t n) {
    if (n < n_begin) {
        return false;
    }
    prefix += n_begin;
    n      -= n_begin;
    size_t same = std::mismatch(taken.begin(), taken.begin() + std::min(taken.size(), n), prefix).first - taken.begin();
    const size_t back = taken.size() - same;
    if (back < states.size()) {
        states.resize(states.size() - back);
        restore(states.back());
    } else {
        states.clear();
        restore(initial);
        keep();
        same = 0;
    }
    taken.resize(same);
    for (; taken.size() < n; taken.push_back(prefix[taken.size()])) {
        if (!accept(prefix[taken.size()])) {
            return false; // the next call restores a state first
        }
        keep();
    }
    return true;
}

// Leaves the candidates that no way to go on takes.
void pymtp_grammar_walk::reject(llama_grammar_candidates & candidates) const {
    size_t budget = most_looks;
    try {
        for (const llama_grammar_stack & stack : grammar->stacks) {
            candidates = llama_grammar_reject_candidates_for_stack(grammar->rules, stack, candidates, &budget);
        }
    } catch (const std::exception &) { // too many ways
    }
}

void pymtp_grammar_walk::allowed(const std::vector<llama_token> & tokens, std::vector<bool> & out) {
    const pymtp_spelling & spelling = *source.spelling;
    out.assign(tokens.size(), false);
    candidates.clear();
    joined.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
        const llama_token token = tokens[i];
        const auto kind = spelling.kinds[token];
        if (kind == pymtp_spelling::END) {
            out[i] = may_end(grammar->stacks);
        } else if (kind == pymtp_spelling::SILENT) {
            out[i] = is_named(grammar->stacks, token);
        } else if (pending.empty()) {
            if (kind == pymtp_spelling::TEXT) {
                candidates.push_back({i, &spelling.characters[spelling.at[token]], spelling.rest[token], token});
            }
        } else if (kind == pymtp_spelling::WITHIN) {
            llama_partial_utf8 rest;
            size_t tail;
            if (read_characters(pending + text_of(source.vocab, token), joined.emplace_back(), rest, tail)) {
                candidates.push_back({i, joined.back().data(), rest, token});
            }
        }
    }
    for (const llama_grammar_candidate & candidate : candidates) {
        out[candidate.index] = true;
    }
    reject(candidates);
    for (const llama_grammar_candidate & candidate : candidates) {
        out[candidate.index] = false;
    }
}

// Tokens are looked at where their first character fits, and their first two do.
void pymtp_grammar_walk::find_all(std::vector<bool> & out) {
    const pymtp_spelling & spelling = *source.spelling;
    likely = spelling.ends;
    for (const llama_grammar_stack & stack : grammar->stacks) {
        if (!stack.empty() && stack.back()->type == LLAMA_GRETYPE_TOKEN && stack.back()->value < spelling.kinds.size()) {
            likely.push_back(stack.back()->value);
        }
    }
    std::vector<bool> fits;
    const auto look_at = [&](const std::vector<pymtp_spelling::group> & groups, auto && each) {
        reject(candidates);
        for (const llama_grammar_candidate & candidate : candidates) {
            fits[candidate.index] = false;
        }
        for (size_t i = 0; i < groups.size(); ++i) {
            if (fits[i]) {
                each(groups[i]);
            }
        }
    };
    if (!pending.empty()) {
        likely.insert(likely.end(), spelling.within.begin(), spelling.within.end());
    } else {
        likely.insert(likely.end(), spelling.split.begin(), spelling.split.end());
        candidates.clear();
        for (size_t i = 0; i < spelling.firsts.size(); ++i) {
            candidates.push_back({i, spelling.firsts[i].key, {0, 0}, LLAMA_TOKEN_NULL});
        }
        fits.assign(spelling.firsts.size(), true);
        std::vector<bool> pair_fits(spelling.pairs.size());
        llama_grammar_candidates pairs;
        look_at(spelling.firsts, [&](const pymtp_spelling::group & first) {
            for (size_t i = first.begin; i < first.end; ++i) {
                pairs.push_back({i, spelling.pairs[i].key, {0, 0}, LLAMA_TOKEN_NULL});
                pair_fits[i] = true;
            }
        });
        candidates = std::move(pairs);
        fits       = std::move(pair_fits);
        look_at(spelling.pairs, [&](const pymtp_spelling::group & pair) {
            likely.insert(likely.end(), spelling.tokens.begin() + pair.begin, spelling.tokens.begin() + pair.end);
        });
    }
    std::vector<bool> verdicts;
    allowed(likely, verdicts);
    out.assign(spelling.kinds.size(), false);
    for (size_t i = 0; i < likely.size(); ++i) {
        out[likely[i]] = verdicts[i];
    }
}

const std::vector<bool> & pymtp_grammar_walk::all_allowed() {
    std::vector<bool> & known = states.back().allowed;
    if (known.empty()) {
        find_all(known);
    }
    return known;
}

static pymtp_grammar * parse(const pymtp_model * model, const char * text) {
    const llama_vocab * vocab = llama_model_get_vocab(model->shared.get());
    std::shared_ptr<llama_grammar> start;
    try {
        start.reset(llama_grammar_init_impl(vocab, text, "root", false, nullptr, 0, nullptr, 0), llama_grammar_free_impl);
    } catch (const std::exception & error) {
        set_grammar_error(std::string("the grammar is not one: ") + error.what());
        return nullptr;
    }
    if (!start) {
        set_grammar_error("the grammar is not one");
        return nullptr;
    }
    return new pymtp_grammar{model->shared, vocab, model->spelling(), std::move(start)};
}

pymtp_grammar * pymtp_grammar_init(const pymtp_model * model, const char * text) {
    return pymtp_guarded<pymtp_grammar *>(nullptr, [&] { return parse(model, text); });
}

void pymtp_grammar_free(pymtp_grammar * grammar) {
    delete grammar;
}
