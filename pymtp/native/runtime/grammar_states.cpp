#include "grammar_states.h"

#include <algorithm>

namespace {

constexpr size_t max_stacks_per_state = 1 << 16;   // maximum number of stacks of one state
constexpr size_t max_stored           = 2'000'000; // maximum number of stacks, and of stacks and moves in all states
constexpr size_t max_spent = 100'000'000;          // budget of reset_budget(), which lasts for some tenths of a second
constexpr size_t stack_cost           = 100;       // part of the budget that a new stack takes
constexpr size_t visit_cost           = 20;
constexpr size_t move_cost            = 20;

} // namespace

pymtp_grammar_states::pymtp_grammar_states(std::shared_ptr<const pymtp_grammar_rules> rules) : rules(std::move(rules)) {
    stacks.push_back({0, EMPTY});
    visited_round.push_back(0);
    states.push_back({&state_ids.emplace(std::vector<uint32_t>(), REJECT).first->first, {{0, REJECT}}});
}

void pymtp_grammar_states::reset_budget() {
    budget = max_spent;
}

void pymtp_grammar_states::spend(size_t n) {
    if (n > budget) {
        budget = 0;
        throw too_many();
    }
    budget -= n;
}

bool pymtp_grammar_states::is_large() const {
    return stacks.size() > max_stored / 2 || n_stored > max_stored / 2;
}

uint32_t pymtp_grammar_states::stack_of(uint32_t top, uint32_t below) {
    const uint64_t key = (uint64_t) top << 32 | below;
    const auto known = stack_ids.find(key);
    if (known != stack_ids.end()) {
        return known->second;
    }
    spend(stack_cost);
    if (stacks.size() == max_stored) {
        throw too_many();
    }
    visited_round.push_back(0);
    stacks.push_back({top, below});
    stack_ids.emplace(key, stacks.size() - 1);
    return stacks.size() - 1;
}

uint32_t pymtp_grammar_states::after_top(stack of) {
    return rules->elements[of.top + 1].type == pymtp_grammar_rules::END ? of.below : stack_of(of.top + 1, of.below);
}

uint32_t pymtp_grammar_states::state_of(std::vector<uint32_t> found) {
    spend(found.size());
    std::sort(found.begin(), found.end());
    const auto known = state_ids.find(found);
    if (known != state_ids.end()) {
        return known->second;
    }
    n_stored += found.size();
    const auto added = state_ids.emplace(std::move(found), states.size()).first;
    states.push_back({&added->first, {}});
    return added->second;
}

void pymtp_grammar_states::clear_found() {
    found.clear();
    ++current_round;
}

void pymtp_grammar_states::advance(uint32_t from) {
    spend(visit_cost);
    todo.assign(1, from);
    while (!todo.empty()) {
        const uint32_t id = todo.back();
        todo.pop_back();
        if (visited_round[id] == current_round) {
            continue;
        }
        visited_round[id] = current_round;
        const stack at = stacks[id];
        if (id == EMPTY || rules->elements[at.top].type != pymtp_grammar_rules::RULE) {
            found.push_back(id);
            if (found.size() > max_stacks_per_state) {
                throw too_many();
            }
            continue;
        }
        const uint32_t below = after_top(at);
        const std::vector<uint32_t> & alternates = rules->alternates[rules->elements[at.top].value];
        spend(visit_cost * alternates.size());
        for (const uint32_t alternate : alternates) {
            const bool nothing = rules->elements[alternate].type == pymtp_grammar_rules::END;
            todo.push_back(nothing ? below : stack_of(alternate, below));
        }
    }
}

// Returns whether an element matches the characters from first to last, all of which it treats alike.
bool pymtp_grammar_states::matches(pymtp_grammar_rules::element top, uint32_t first, uint32_t last) const {
    if (top.type == pymtp_grammar_rules::CHARACTER) {
        return first <= top.value && top.value <= last;
    }
    if (top.type != pymtp_grammar_rules::CLASS) {
        return false;
    }
    const std::vector<pymtp_grammar_rules::range> & ranges = rules->classes[top.value];
    const auto it = std::lower_bound(ranges.begin(), ranges.end(), first,
        [](const pymtp_grammar_rules::range & range, uint32_t value) { return range.last < value; });
    return it != ranges.end() && it->first <= last;
}

uint32_t pymtp_grammar_states::start_state() {
    clear_found();
    for (const uint32_t alternate : rules->alternates[rules->root]) {
        advance(rules->elements[alternate].type == pymtp_grammar_rules::END ? EMPTY : stack_of(alternate, EMPTY));
    }
    return state_of(found);
}

void pymtp_grammar_states::build_moves(state & of) {
    std::vector<uint32_t> firsts{0};
    for (const uint32_t id : *of.stacks) {
        spend(1);
        const pymtp_grammar_rules::element top = rules->elements[stacks[id].top];
        if (id == EMPTY) {
            continue;
        }
        if (top.type == pymtp_grammar_rules::CHARACTER) {
            spend(move_cost);
            firsts.insert(firsts.end(), {top.value, top.value + 1});
        } else if (top.type == pymtp_grammar_rules::CLASS) {
            spend(move_cost * rules->classes[top.value].size());
            for (const auto & [first, last] : rules->classes[top.value]) {
                firsts.insert(firsts.end(), {first, last + 1});
            }
        }
    }
    std::sort(firsts.begin(), firsts.end());
    firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
    std::vector<move> moves;
    for (const uint32_t first : firsts) {
        moves.push_back({first, UNKNOWN});
    }
    n_stored += moves.size();
    of.moves = std::move(moves);
}

uint32_t pymtp_grammar_states::next_state(uint32_t from, uint32_t character) {
    if (states[from].moves.empty()) {
        build_moves(states[from]);
    }
    spend(1);
    std::vector<move> & moves = states[from].moves;
    const auto above = [](uint32_t value, const move & move) { return value < move.first; };
    const size_t i = std::upper_bound(moves.begin(), moves.end(), character, above) - moves.begin() - 1;
    if (moves[i].state == UNKNOWN) {
        clear_found();
        spend(states[from].stacks->size());
        for (const uint32_t id : *states[from].stacks) {
            if (id != EMPTY && matches(rules->elements[stacks[id].top], character, character)) {
                advance(after_top(stacks[id]));
            }
        }
        const uint32_t next = state_of(found); // a variable of its own, because state_of() may reallocate `states`
        states[from].moves[i].state = next;
    }
    return states[from].moves[i].state;
}

uint32_t pymtp_grammar_states::next_state_by_token(uint32_t from, llama_token token, bool named) {
    clear_found();
    spend(states[from].stacks->size());
    for (const uint32_t id : *states[from].stacks) {
        const pymtp_grammar_rules::element top = rules->elements[stacks[id].top];
        if (id != EMPTY && (top.type == pymtp_grammar_rules::TOKEN ? top.value == (uint32_t) token :
                top.type == pymtp_grammar_rules::NOT_TOKEN && !named && top.value != (uint32_t) token)) {
            advance(after_top(stacks[id]));
        }
    }
    return state_of(found);
}

uint32_t pymtp_grammar_states::restrict_to(uint32_t from, pymtp_partial_utf8 partial) {
    const auto [first, last] = partial.range();
    clear_found();
    spend(states[from].stacks->size());
    for (const uint32_t id : *states[from].stacks) {
        if (id != EMPTY && matches(rules->elements[stacks[id].top], first, last)) {
            found.push_back(id);
        }
    }
    return state_of(found);
}

uint32_t pymtp_grammar_states::unite(uint32_t a, uint32_t b) {
    if (a == b || b == REJECT) {
        return a;
    }
    const std::vector<uint32_t> & x = *states[a].stacks;
    const std::vector<uint32_t> & y = *states[b].stacks;
    spend(x.size() + y.size());
    clear_found();
    std::set_union(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(found));
    return state_of(found);
}

bool pymtp_grammar_states::is_accepting(uint32_t state) const {
    const std::vector<uint32_t> & of = *states[state].stacks;
    return !of.empty() && of.front() == EMPTY;
}

bool pymtp_grammar_states::accepts_partial(uint32_t state, pymtp_partial_utf8 partial) {
    const auto [first, last] = partial.range();
    const std::vector<uint32_t> & of = *states[state].stacks;
    spend(of.size());
    return std::any_of(of.begin(), of.end(), [&, first = first, last = last](uint32_t id) {
        return id != EMPTY && matches(rules->elements[stacks[id].top], first, last);
    });
}

// Copies a state of another automaton, and returns the copy. known: maps the stacks of `from` that were copied before
// to their copies
uint32_t pymtp_grammar_states::copy_state(
        const pymtp_grammar_states & from, uint32_t state, std::unordered_map<uint32_t, uint32_t> & known) {
    known.emplace(EMPTY, EMPTY);
    std::vector<uint32_t> copies;
    for (uint32_t id : *from.states[state].stacks) {
        todo.clear();
        for (; known.count(id) == 0; id = from.stacks[id].below) {
            todo.push_back(id);
        }
        uint32_t copy = known.at(id);
        for (; !todo.empty(); todo.pop_back()) {
            copy = stack_of(from.stacks[todo.back()].top, copy);
            known.emplace(todo.back(), copy);
        }
        copies.push_back(copy);
    }
    return state_of(std::move(copies));
}
