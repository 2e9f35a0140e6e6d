#include "grammar.h"

#include "border.h"
#include "host.h"
#include "model.h"
#include "pymtp.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

namespace {

constexpr size_t most_positions = 64; // a round goes back by fewer tokens; further back, the text is read again
constexpr size_t most_masks     = 64; // each a bit for every token

constexpr uint32_t NOWHERE = pymtp_grammar_states::NOWHERE;

// The first line of a reason: the rest of the grammar may follow, with which llama.cpp ends it.
void refuse(const char * why) noexcept {
    constexpr size_t most = 200;
    try {
        std::string text = std::string("the grammar is not one: ") + why;
        text = text.substr(0, text.find('\n'));
        pymtp_set_error(text.size() > most ? text.substr(0, most) + " …" : text);
    } catch (...) { // no memory even for that
    }
}

} // namespace

pymtp_grammar_walk::pymtp_grammar_walk(const pymtp_grammar & source) : source(source), states(source.rules) {
    states.begin();
    initial = {states.start(), NOWHERE, {}};
}

void pymtp_grammar_walk::begin(size_t n) {
    n_begin = n;
    taken.clear();
    positions.clear();
}

// False, with the position as it was, when the token is outside the grammar.
bool pymtp_grammar_walk::take(position & at, llama_token token) {
    position next = {NOWHERE, NOWHERE, {}};
    switch (source.spelling->kinds[token]) {
        case pymtp_spelling::END:
            return at.partial.n_more == 0 && states.may_end(at.whole);
        case pymtp_spelling::SILENT:
            if (at.partial.n_more == 0) {
                next.whole = states.after_token(at.whole, token, true);
            }
            break;
        default: {
            pymtp_spelling::text text;
            if (!source.spelling->read(token, at.partial, text, scratch)) {
                return false;
            }
            uint32_t state = at.partial.n_more ? at.within : at.whole;
            for (const uint32_t * c = text.begin; c != text.end && state != NOWHERE; ++c) {
                state = states.after(state, *c);
            }
            next.partial = text.rest;
            if (next.partial.n_more) {
                next.within = states.within(state, next.partial);
            } else {
                next.whole = state;
            }
            if (source.rules->has_tokens) {
                next.whole = states.joined(next.whole, states.after_token(at.whole, token, false));
            }
        }
    }
    if (next.whole == NOWHERE && next.within == NOWHERE) {
        return false;
    }
    at = next;
    return true;
}

// Begins anew with the states that are still of use, where there are many.
void pymtp_grammar_walk::forget() {
    if (!states.is_large()) {
        return;
    }
    pymtp_grammar_states fresh(source.rules);
    fresh.begin();
    const position start = {fresh.start(), NOWHERE, {}};
    std::unordered_map<uint32_t, uint32_t> known;
    std::deque<position> kept;
    for (const position & at : positions) {
        fresh.begin();
        kept.push_back({fresh.copied(states, at.whole, known), fresh.copied(states, at.within, known), at.partial});
    }
    states    = std::move(fresh);
    initial   = start;
    positions = std::move(kept);
    masks.clear();
}

bool pymtp_grammar_walk::go_to(const llama_token * prefix, size_t n) {
    if (n < n_begin) {
        return false;
    }
    prefix += n_begin;
    n      -= n_begin;
    size_t same = std::mismatch(taken.begin(), taken.begin() + std::min(taken.size(), n), prefix).first - taken.begin();
    const size_t back = taken.size() - same;
    if (back < positions.size()) {
        positions.resize(positions.size() - back);
    } else {
        positions.assign(1, initial);
        same = 0;
    }
    taken.resize(same);
    try {
        for (; taken.size() < n; taken.push_back(prefix[taken.size()])) {
            forget();
            states.begin();
            position at = positions.back();
            if (!take(at, prefix[taken.size()])) {
                return false;
            }
            positions.push_back(at);
            if (positions.size() > most_positions) {
                positions.pop_front();
            }
        }
    } catch (const std::exception &) {
        begin(n_begin);
        return false;
    }
    return true;
}

void pymtp_grammar_walk::allowed(const std::vector<llama_token> & tokens, size_t most, std::vector<bool> & out) {
    out.assign(tokens.size(), false);
    try {
        forget();
        states.begin();
        const auto known = positions.back().partial.n_more ? masks.end() : masks.find(positions.back().whole);
        for (size_t i = 0; i < tokens.size() && most > 0; ++i) {
            position at = positions.back();
            out[i] = known != masks.end() ? known->second.has(tokens[i]) : take(at, tokens[i]);
            most -= out[i];
        }
    } catch (const std::exception &) {
        out.assign(tokens.size(), false);
    }
}

// All texts that may follow: tokens in order, each from where it differs from the one before.
void pymtp_grammar_walk::find_texts(uint32_t state, pymtp_token_set & out) {
    const pymtp_spelling & spelling = *source.spelling;
    std::vector<uint32_t> path{state}; // after each character of a token
    pymtp_spelling::text text;
    for (size_t i = 0; i < spelling.sorted.size();) {
        const llama_token token = spelling.sorted[i];
        spelling.read(token, {}, text, scratch);
        const size_t n = text.end - text.begin;
        path.resize(1 + std::min<size_t>(spelling.shared[i], path.size() - 1));
        while (path.size() <= n && path.back() != NOWHERE) {
            path.push_back(states.after(path.back(), text.begin[path.size() - 1]));
        }
        if (path.back() != NOWHERE) {
            out.set(token, text.rest.n_more == 0 || states.fits(path.back(), text.rest));
            ++i;
            continue;
        }
        path.pop_back();
        do { // all that begin like this one
            ++i;
        } while (i < spelling.sorted.size() && spelling.shared[i] >= path.size());
    }
}

// All tokens that may follow because the grammar names them, or others.
void pymtp_grammar_walk::find_tokens(uint32_t state, pymtp_token_set & out) const {
    const pymtp_spelling & spelling = *source.spelling;
    const auto is = [&](uint32_t token, pymtp_spelling::kind kind) {
        return token < spelling.kinds.size() && spelling.kinds[token] == kind;
    };
    bool     excludes = false;
    bool     any      = false;
    uint32_t excluded = 0;
    states.for_each_top(state, [&](pymtp_grammar_rules::element top) {
        if (top.what == pymtp_grammar_rules::TOKEN) {
            if (is(top.value, pymtp_spelling::TEXT) || is(top.value, pymtp_spelling::SILENT)) {
                out.set(top.value, true);
            }
        } else if (top.what == pymtp_grammar_rules::NOT_TOKEN) {
            any |= excludes && excluded != top.value; // what one excludes the other allows
            excludes = true;
            excluded = top.value;
        }
    });
    // once for all that exclude a token: there may be thousands
    for (size_t i = 0; excludes && i < spelling.sorted.size(); ++i) {
        const llama_token token = spelling.sorted[i];
        out.set(token, out.has(token) || any || (uint32_t) token != excluded);
    }
}

void pymtp_grammar_walk::find_all(const position & at, pymtp_token_set & out) {
    out.clear(source.spelling->kinds.size());
    if (at.partial.n_more) {
        for (const llama_token token : source.spelling->within) {
            position next = at;
            out.set(token, take(next, token));
        }
        return;
    }
    find_texts(at.whole, out);
    if (source.rules->has_tokens) {
        find_tokens(at.whole, out);
    }
    for (const llama_token token : source.spelling->ends) {
        out.set(token, states.may_end(at.whole));
    }
}

const pymtp_token_set & pymtp_grammar_walk::all_allowed() {
    try {
        forget();
        states.begin();
        const position & at = positions.back();
        if (at.partial.n_more) {
            find_all(at, mask);
            return mask;
        }
        const auto known = masks.find(at.whole);
        if (known != masks.end()) {
            return known->second;
        }
        find_all(at, mask);
        if (masks.size() == most_masks) {
            masks.clear();
        }
        return masks[at.whole] = std::move(mask);
    } catch (const std::exception &) {
        mask.clear(source.spelling->kinds.size());
        return mask;
    }
}

pymtp_grammar * pymtp_grammar_init(const pymtp_model * model, const char * text) {
    return pymtp_guarded<pymtp_grammar *>(nullptr, [&]() -> pymtp_grammar * {
        try {
            const llama_vocab * vocab = llama_model_get_vocab(model->shared.get());
            auto rules = std::make_shared<const pymtp_grammar_rules>(pymtp_read_grammar(vocab, text));
            auto grammar = std::make_unique<pymtp_grammar>(pymtp_grammar{model->shared, model->spelling(), std::move(rules)});
            pymtp_grammar_walk{*grammar};
            return grammar.release();
        } catch (const std::bad_alloc &) {
            refuse("there is no memory for it");
            return nullptr;
        } catch (const std::exception & error) {
            refuse(error.what());
            return nullptr;
        }
    });
}

void pymtp_grammar_free(pymtp_grammar * grammar) {
    delete grammar;
}
