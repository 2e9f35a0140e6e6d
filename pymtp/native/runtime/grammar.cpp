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

// Positions to keep. Rewinds in rounds are shorter; after a longer one, the text is matched again from its start.
constexpr size_t max_positions = 64;
// sets of allowed tokens to keep; each takes one bit for every token of the vocabulary
constexpr size_t max_masks     = 64;

constexpr uint32_t REJECT = pymtp_grammar_states::REJECT;

// Sets the error message for a refused grammar. Uses only the first line of the reason, because llama.cpp appends the
// rest of the grammar to some reasons.
void set_grammar_error(const char * reason) noexcept {
    constexpr size_t max_length = 200;
    try {
        std::string text = std::string("the grammar is not one: ") + reason;
        text = text.substr(0, text.find('\n'));
        pymtp_set_error(text.size() > max_length ? text.substr(0, max_length) + " …" : text);
    } catch (...) { // if there is no memory for the message, the previous error stays
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

// Moves the position `at` past the token. Returns false, and leaves `at` unchanged, when the grammar does not allow the
// token.
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

// If the automaton has become large, rebuilds it with only the states that are still in use.
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
            const llama_token next = prefix[accepted.size()];
            if (next < 0 || !accept(at, next)) { // an image is no text
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

// Adds to `out` all text tokens that the grammar allows after the state. Tokens are visited in the order of their
// characters, so that matching a token resumes after the characters that it shares with the token before.
void pymtp_grammar_matcher::add_texts(uint32_t state, pymtp_token_set & out) {
    const pymtp_token_codepoints & codepoints = *source.codepoints;
    std::vector<uint32_t> path{state}; // path[i]: the state after the first i characters of the current token
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
        do { // skips all tokens that start with the rejected characters
            ++i;
        } while (i < codepoints.sorted.size() && codepoints.shared[i] >= path.size());
    }
}

// Adds to `out` all tokens that the grammar allows next by token: those that it names, or all but a token that it
// excludes.
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
            // alternatives that exclude different tokens allow every token together
            any |= excludes && excluded != top.value;
            excludes = true;
            excluded = top.value;
        }
    });
    // One pass over the tokens for all exclusions together, because there may be thousands of them.
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
