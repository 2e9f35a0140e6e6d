// A grammar as an automaton that is built lazily.
//
// A stack is a sequence of elements that would have to match next, the nearest on top. An ambiguous prefix has several
// stacks; a state is the set of them. Equal stacks and equal states share one number, so a common tail is stored once,
// and the successor of a state is computed once for each character class.
#pragma once

#include "grammar_rules.h"
#include "token_codepoints.h"

#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

class pymtp_grammar_states {
public:
    static constexpr uint32_t REJECT = 0; // the state after a text that the grammar rejects

    // thrown when the grammar has too many alternatives to track
    struct too_many : std::exception {
        const char * what() const noexcept override { return "the grammar has too many ways to go on"; }
    };

    // Functions that create states throw too_many when there would be too many, or when the budget of reset_budget()
    // is spent.
    explicit pymtp_grammar_states(std::shared_ptr<const pymtp_grammar_rules> rules);
    pymtp_grammar_states(const pymtp_grammar_states &) = delete;
    pymtp_grammar_states & operator=(pymtp_grammar_states &&) = default;

    void reset_budget();
    uint32_t start_state();
    uint32_t next_state(uint32_t state, uint32_t character);
    // named: the token must be named, "any other token" does not match it
    uint32_t next_state_by_token(uint32_t state, llama_token token, bool named);
    // keeps the stacks that can match the partial character
    uint32_t restrict_to(uint32_t state, pymtp_partial_utf8 partial);
    uint32_t unite(uint32_t a, uint32_t b);
    uint32_t copy_state(const pymtp_grammar_states & from, uint32_t state,
            std::unordered_map<uint32_t, uint32_t> & known);

    // tells whether any stack can match the partial character
    bool accepts_partial(uint32_t state, pymtp_partial_utf8 partial);
    bool is_accepting(uint32_t state) const;

    // Calls each(element) for the top of each stack of a state.
    template <typename Each>
    void for_each_top(uint32_t state, Each each) const {
        for (const uint32_t stack : *states[state].stacks) {
            if (stack != EMPTY) {
                each(rules->elements[stacks[stack].top]);
            }
        }
    }

    // tells whether it is time to rebuild the automaton from the states that are still in use
    bool is_large() const;

private:
    static constexpr uint32_t EMPTY   = 0; // the stack of a complete text
    static constexpr uint32_t UNKNOWN = UINT32_MAX;

    struct stack {
        uint32_t top; // index in rules->elements
        uint32_t below;
    };
    struct move { // the transition for the characters from first to before the next move's first
        uint32_t first;
        uint32_t state; // UNKNOWN until first used
    };
    struct state {
        const std::vector<uint32_t> * stacks; // sorted
        std::vector<move>             moves;  // empty until first used
    };

    void spend(size_t n);
    uint32_t stack_of(uint32_t top, uint32_t below);
    uint32_t after_top(stack of);
    uint32_t state_of(std::vector<uint32_t> found);
    void build_moves(state & of);
    void advance(uint32_t from); // expands rules, and adds the stacks that have no rule on top to `found`
    void clear_found();
    bool matches(pymtp_grammar_rules::element top, uint32_t first, uint32_t last) const;

    std::shared_ptr<const pymtp_grammar_rules> rules;

    std::vector<stack>                        stacks;
    std::unordered_map<uint64_t, uint32_t>    stack_ids;
    std::vector<state>                        states;
    std::map<std::vector<uint32_t>, uint32_t> state_ids;
    size_t                                    n_stored = 0; // stacks and moves in all states
    size_t                                    budget = 0;

    std::vector<uint32_t> found; // the stacks that advance() has added since clear_found()
    std::vector<uint32_t> visited_round; // for each stack: the round in which it was last visited
    uint32_t              current_round = 0;
    std::vector<uint32_t> todo;
};
