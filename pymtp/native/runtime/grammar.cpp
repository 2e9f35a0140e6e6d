#include "grammar.h"

#include "api_guard.h"
#include "callbacks.h"
#include "model.h"
#include "pymtp.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

namespace {

constexpr size_t max_positions = 64; // a rewind is shorter; beyond it, the text is matched from its beginning
constexpr size_t max_masks     = 64; // each has a bit for every token

constexpr uint32_t REJECT = pymtp_grammar_states::REJECT;

// Sets the error to the first line of a reason: llama.cpp appends the rest of the grammar to some.
void set_grammar_error(const char * reason) noexcept {
    constexpr size_t max_length = 200;
    try {
        std::string text = std::string("the grammar is not one: ") + reason;
        text = text.substr(0, text.find('\n'));
        pymtp_set_error(text.size() > max_length ? text.substr(0, max_length) + " …" : text);
    } catch (...) { // without memory, the previous error stays
    }
}

} // namespace

pymtp_grammar_matcher::pymtp_grammar_matcher(const pymtp_grammar & source) : source(source), states(source.rules) {
    states.reset_budget();
    initial = {states.start_state(), REJECT, {}};
}

void pymtp_grammar_matcher::begin(size_t n) {
    n_begin = n;
    accepted.clear();
    positions.clear();
}

// Moves `at` past the token. Returns false, and leaves `at`, when the grammar does not allow the token.
bool pymtp_grammar_matcher::accept(position & at, llama_token token) {
    position next = {REJECT, REJECT, {}};
    switch (source.codepoints->kinds[token]) {
        case pymtp_token_codepoints::END_OF_GENERATION:
            return at.partial.n_more == 0 && states.is_accepting(at.state);
        case pymtp_token_codepoints::CONTROL:
            if (at.partial.n_more == 0) {
                next.state = states.next_state_by_token(at.state, token, true);
            }
            break;
        default: {
            pymtp_token_codepoints::text text;
            if (!source.codepoints->decode(token, at.partial, text, scratch)) {
                return false;
            }
            uint32_t s = at.partial.n_more ? at.partial_state : at.state;
            for (const uint32_t * c = text.begin; c != text.end && s != REJECT; ++c) {
                s = states.next_state(s, *c);
            }
            next.partial = text.rest;
            if (next.partial.n_more) {
                next.partial_state = states.restrict_to(s, next.partial);
            } else {
                next.state = s;
            }
            if (source.rules->has_tokens) {
                next.state = states.unite(next.state, states.next_state_by_token(at.state, token, false));
            }
        }
    }
    if (next.state == REJECT && next.partial_state == REJECT) {
        return false;
    }
    at = next;
    return true;
}

// Rebuilds the automaton from the states that are still in use, when it has become large.
void pymtp_grammar_matcher::compact() {
    if (!states.is_large()) {
        return;
    }
    pymtp_grammar_states fresh(source.rules);
    fresh.reset_budget();
    const position start = {fresh.start_state(), REJECT, {}};
    std::unordered_map<uint32_t, uint32_t> known;
    std::deque<position> kept;
    for (const position & at : positions) {
        fresh.reset_budget();
        kept.push_back({fresh.copy_state(states, at.state, known), fresh.copy_state(states, at.partial_state, known),
                at.partial});
    }
    states    = std::move(fresh);
    initial   = start;
    positions = std::move(kept);
    allowed_by_state.clear();
}

bool pymtp_grammar_matcher::go_to(const llama_token * prefix, size_t n) {
    if (n < n_begin) {
        return false;
    }
    prefix += n_begin;
    n      -= n_begin;
    const auto limit = accepted.begin() + std::min(accepted.size(), n);
    size_t same = std::mismatch(accepted.begin(), limit, prefix).first - accepted.begin();
    const size_t back = accepted.size() - same;
    if (back < positions.size()) {
        positions.resize(positions.size() - back);
    } else {
        positions.assign(1, initial);
        same = 0;
    }
    accepted.resize(same);
    try {
        for (; accepted.size() < n; accepted.push_back(prefix[accepted.size()])) {
            compact();
            states.reset_budget();
            position at = positions.back();
            if (!accept(at, prefix[accepted.size()])) {
                return false;
            }
            positions.push_back(at);
            if (positions.size() > max_positions) {
                positions.pop_front();
            }
        }
    } catch (const std::exception &) {
        begin(n_begin);
        return false;
    }
    return true;
}

void pymtp_grammar_matcher::allowed(const std::vector<llama_token> & tokens, size_t limit, std::vector<bool> & out) {
    out.assign(tokens.size(), false);
    try {
        compact();
        states.reset_budget();
        const auto known = positions.back().partial.n_more ? allowed_by_state.end()
                : allowed_by_state.find(positions.back().state);
        for (size_t i = 0; i < tokens.size() && limit > 0; ++i) {
            position at = positions.back();
            out[i] = known != allowed_by_state.end() ? known->second.has(tokens[i]) : accept(at, tokens[i]);
            limit -= out[i];
        }
    } catch (const std::exception &) {
        out.assign(tokens.size(), false);
    }
}

// Adds all text tokens that may follow. Tokens are sorted by their characters, so each starts at the prefix that it
// shares with the one before.
void pymtp_grammar_matcher::add_texts(uint32_t state, pymtp_token_set & out) {
    const pymtp_token_codepoints & codepoints = *source.codepoints;
    std::vector<uint32_t> path{state}; // the states after each character of a token
    pymtp_token_codepoints::text text;
    for (size_t i = 0; i < codepoints.sorted.size();) {
        const llama_token token = codepoints.sorted[i];
        codepoints.decode(token, {}, text, scratch);
        const size_t n = text.end - text.begin;
        path.resize(1 + std::min<size_t>(codepoints.shared[i], path.size() - 1));
        while (path.size() <= n && path.back() != REJECT) {
            path.push_back(states.next_state(path.back(), text.begin[path.size() - 1]));
        }
        if (path.back() != REJECT) {
            out.set(token, text.rest.n_more == 0 || states.accepts_partial(path.back(), text.rest));
            ++i;
            continue;
        }
        path.pop_back();
        do { // skips all tokens with the rejected prefix
            ++i;
        } while (i < codepoints.sorted.size() && codepoints.shared[i] >= path.size());
    }
}

// Adds all tokens that may follow because the grammar names them, or excludes only others.
void pymtp_grammar_matcher::add_named_tokens(uint32_t state, pymtp_token_set & out) const {
    const pymtp_token_codepoints & codepoints = *source.codepoints;
    const auto is = [&](uint32_t token, pymtp_token_codepoints::kind kind) {
        return token < codepoints.kinds.size() && codepoints.kinds[token] == kind;
    };
    bool     excludes = false;
    bool     any      = false;
    uint32_t excluded = 0;
    states.for_each_top(state, [&](pymtp_grammar_rules::element top) {
        if (top.type == pymtp_grammar_rules::TOKEN) {
            if (is(top.value, pymtp_token_codepoints::TEXT) || is(top.value, pymtp_token_codepoints::CONTROL)) {
                out.set(top.value, true);
            }
        } else if (top.type == pymtp_grammar_rules::NOT_TOKEN) {
            any |= excludes && excluded != top.value; // two different exclusions together allow every token
            excludes = true;
            excluded = top.value;
        }
    });
    // in one pass over the tokens, because thousands of elements may exclude one
    for (size_t i = 0; excludes && i < codepoints.sorted.size(); ++i) {
        const llama_token token = codepoints.sorted[i];
        out.set(token, out.has(token) || any || (uint32_t) token != excluded);
    }
}

void pymtp_grammar_matcher::fill_allowed(const position & at, pymtp_token_set & out) {
    out.clear(source.codepoints->kinds.size());
    if (at.partial.n_more) {
        for (const llama_token token : source.codepoints->continuations) {
            position next = at;
            out.set(token, accept(next, token));
        }
        return;
    }
    add_texts(at.state, out);
    if (source.rules->has_tokens) {
        add_named_tokens(at.state, out);
    }
    for (const llama_token token : source.codepoints->end_tokens) {
        out.set(token, states.is_accepting(at.state));
    }
}

const pymtp_token_set & pymtp_grammar_matcher::all_allowed() {
    try {
        compact();
        states.reset_budget();
        const position & at = positions.back();
        if (at.partial.n_more) {
            fill_allowed(at, allowed_buffer);
            return allowed_buffer;
        }
        const auto known = allowed_by_state.find(at.state);
        if (known != allowed_by_state.end()) {
            return known->second;
        }
        fill_allowed(at, allowed_buffer);
        if (allowed_by_state.size() == max_masks) {
            allowed_by_state.clear();
        }
        return allowed_by_state[at.state] = std::move(allowed_buffer);
    } catch (const std::exception &) {
        allowed_buffer.clear(source.codepoints->kinds.size());
        return allowed_buffer;
    }
}

pymtp_grammar * pymtp_grammar_init(const pymtp_model * model, const char * text) {
    return pymtp_guarded<pymtp_grammar *>(nullptr, [&]() -> pymtp_grammar * {
        try {
            const llama_vocab * vocab = llama_model_get_vocab(model->shared.get());
            auto rules = std::make_shared<const pymtp_grammar_rules>(pymtp_read_grammar(vocab, text));
            auto grammar = std::make_unique<pymtp_grammar>(
                pymtp_grammar{model->shared, model->codepoints(), std::move(rules)});
            pymtp_grammar_matcher{*grammar};
            return grammar.release();
        } catch (const std::bad_alloc &) {
            set_grammar_error("there is no memory for it");
            return nullptr;
        } catch (const std::exception & error) {
            set_grammar_error(error.what());
            return nullptr;
        }
    });
}

void pymtp_grammar_free(pymtp_grammar * grammar) {
    delete grammar;
}
