// Matches a grammar with an automaton, whose states are built when they are first needed.
//
// A stack is the sequence of elements that must match the rest of the text, with the next element on top. A text that
// the grammar can parse in several ways has several stacks; a state is the set of these stacks. Equal stacks share one
// number, and so do equal states. Therefore a tail that several stacks have in common is stored once, and the successor
// of a state is computed once for each class of characters.
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
    static constexpr uint32_t REJECT = 0; // the state after a text that does not match the grammar

    // Thrown when the grammar has too many alternatives to track.
    struct too_many : std::exception {
        const char * what() const noexcept override { return "the grammar has too many ways to go on"; }
    };

    // All functions that may create states throw too_many if there are too many states or stacks, or if they have used
    // more time since reset_budget() than its budget allows.
    explicit pymtp_grammar_states(std::shared_ptr<const pymtp_grammar_rules> rules);
    pymtp_grammar_states(const pymtp_grammar_states &) = delete;
    pymtp_grammar_states & operator=(pymtp_grammar_states &&) = default;

    void reset_budget();
    uint32_t start_state();
    uint32_t next_state(uint32_t state, uint32_t character);
    // Returns the state after a token that is matched as one element. named: only elements that name the token match
    // it, not those that match any token except one
    uint32_t next_state_by_token(uint32_t state, llama_token token, bool named);
    // Returns the state with only those stacks that can match a character which begins with the given bytes.
    uint32_t restrict_to(uint32_t state, pymtp_partial_utf8 partial);
    uint32_t unite(uint32_t a, uint32_t b);
    uint32_t copy_state(const pymtp_grammar_states & from, uint32_t state,
            std::unordered_map<uint32_t, uint32_t> & known);

    // Returns whether any stack of the state can match a character which begins with the given bytes.
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

    // Returns whether the automaton is so large that it should be rebuilt with only the states that are still in use.
    bool is_large() const;

private:
    static constexpr uint32_t EMPTY   = 0; // the stack without elements: the text is complete
    static constexpr uint32_t UNKNOWN = UINT32_MAX;

    struct stack {
        uint32_t top; // index of the stack's top in rules->elements
        uint32_t below;
    };
    struct move { // the transition for characters from `first` to the one before the next move's `first`
        uint32_t first;
        uint32_t state; // UNKNOWN until the transition is first used
    };
    struct state {
        const std::vector<uint32_t> * stacks; // sorted
        std::vector<move>             moves;  // empty until the state's first transition is needed
    };

    void spend(size_t n);
    uint32_t stack_of(uint32_t top, uint32_t below);
    uint32_t after_top(stack of);
    uint32_t state_of(std::vector<uint32_t> found);
    void build_moves(state & of);
    // expands the rules on top of the stack, and adds the resulting stacks, which have no rule on top, to `found`
    void advance(uint32_t from);
    void clear_found();
    bool matches(pymtp_grammar_rules::element top, uint32_t first, uint32_t last) const;

    std::shared_ptr<const pymtp_grammar_rules> rules;

    std::vector<stack>                        stacks;
    std::unordered_map<uint64_t, uint32_t>    stack_ids;
    std::vector<state>                        states;
    std::map<std::vector<uint32_t>, uint32_t> state_ids;
    size_t                                    n_stored = 0; // number of stacks and moves in all states together
    size_t                                    budget = 0;

    std::vector<uint32_t> found; // the stacks that advance() has added since clear_found()
    std::vector<uint32_t> visited_round; // for each stack: the round in which it was last visited
    uint32_t              current_round = 0;
    std::vector<uint32_t> todo;
};
