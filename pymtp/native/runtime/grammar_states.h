// A grammar as an automaton, made as far as texts come.
//
// A stack is what a text would have to go on with: an element on top, the rest below it. Texts that are ambiguous so far
// have several. A state is the set of them. Equal stacks, and equal states, have one number: what is below is shared, and
// what follows on a character is looked for once.
#pragma once

#include "grammar_rules.h"
#include "spelling.h"

#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

class pymtp_grammar_states {
public:
    static constexpr uint32_t NOWHERE = 0; // outside the grammar

    // the grammar has too many ways to go on, from here at least
    struct too_many : std::exception {
        const char * what() const noexcept override { return "the grammar has too many ways to go on"; }
    };

    // All that make states throw too_many when there would be too many, or the budget of begin() is spent.
    explicit pymtp_grammar_states(std::shared_ptr<const pymtp_grammar_rules> rules);
    pymtp_grammar_states(const pymtp_grammar_states &) = delete;
    pymtp_grammar_states & operator=(pymtp_grammar_states &&) = default;

    void begin();
    uint32_t start();
    uint32_t after(uint32_t state, uint32_t character);
    uint32_t after_token(uint32_t state, llama_token token, bool named); // named: not where any other token may stand
    uint32_t within(uint32_t state, pymtp_partial_character partial);    // what of it can go on with that
    uint32_t joined(uint32_t a, uint32_t b);
    uint32_t copied(const pymtp_grammar_states & from, uint32_t state, std::unordered_map<uint32_t, uint32_t> & known);

    bool fits(uint32_t state, pymtp_partial_character partial); // whether any of it can
    bool may_end(uint32_t state) const;

    // Calls each(element) for the tops of a state's stacks.
    template <typename Each>
    void for_each_top(uint32_t state, Each each) const {
        for (const uint32_t stack : *states[state].stacks) {
            if (stack != EMPTY) {
                each(rules->elements[stacks[stack].top]);
            }
        }
    }

    // whether it is time to begin anew with those that are still of use
    bool is_large() const;

private:
    static constexpr uint32_t EMPTY   = 0;          // the stack of a text that may end
    static constexpr uint32_t UNKNOWN = UINT32_MAX;

    struct stack {
        uint32_t top; // its index in rules->elements
        uint32_t below;
    };
    struct move { // for the characters from first to the next move's
        uint32_t first;
        uint32_t state; // UNKNOWN until asked for
    };
    struct state {
        const std::vector<uint32_t> * stacks; // sorted
        std::vector<move>             moves;  // empty until asked for
    };

    void spend(size_t n);
    uint32_t stack_of(uint32_t top, uint32_t below);
    uint32_t after_top(stack of);
    uint32_t state_of(std::vector<uint32_t> found);
    void find_moves(state & of);
    void advance(uint32_t from); // adds all stacks with no rule on top that it comes to
    void clear_found();
    bool matches(pymtp_grammar_rules::element top, uint32_t first, uint32_t last) const;

    std::shared_ptr<const pymtp_grammar_rules> rules;

    std::vector<stack>                        stacks;
    std::unordered_map<uint64_t, uint32_t>    stack_ids;
    std::vector<state>                        states;
    std::map<std::vector<uint32_t>, uint32_t> state_ids;
    size_t                                    n_kept = 0; // stacks of all states, and moves
    size_t                                    budget = 0;

    std::vector<uint32_t> found; // by advance(), since clear_found()
    std::vector<uint32_t> round; // for each stack: when it was last come to
    uint32_t              n_rounds = 0;
    std::vector<uint32_t> todo;
};
