// The tokens that drafts are made over, where they are not all: FR-Spec (arXiv 2502.14856), with a set that follows the text.
//
// At first they are the tokenizer's earliest: a BPE vocabulary lists its merges from the most frequent on. Those that can be
// written but are no merges, such as the end of a turn, come before them. A token of the text that is not in the set joins
// it; the one leaves that was seen longest ago, of those never seen the latest merge.
//
// Each token has a row. A few rows, the annex, change as tokens join; when all of them have, rows are given out anew.
//
// While too many tokens of the text are new to the set, such as in another language, drafts are better made over all.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// How many tokens of a vocabulary drafts are made over where n are asked for: rows come in steps. 0: all.
int32_t pymtp_draft_vocab_size(int32_t n_vocab, int32_t n);

class pymtp_draft_vocab {
public:
    // n: a multiple of PYMTP_ROW_STEP, at least two of them, less than the vocabulary. most_outside: the share of the tokens
    // written, of those outside the set, from which on drafts over the set bring less than drafts over all.
    pymtp_draft_vocab(const llama_vocab & vocab, int32_t n, double most_outside);

    static int32_t n_annex(int32_t n);

    // Tokens of the text, in order. They join with the next update.
    void see(const llama_token * text, size_t n);

    // The same of tokens that the target has chosen: drafts could have been these.
    void see_chosen(const llama_token * text, size_t n);

    // What was chosen so far says nothing about the text to come: drafts pay again.
    void forget_chosen() {
        outside = 0.0;
        paying  = !given_up;
    }

    // From here on drafts are made over all.
    void give_up() {
        given_up = true;
        paying   = false;
    }

    bool holds(llama_token token) const { return states[token].held; }

    // Whether drafts are better made over the set than over all.
    bool pays() const { return paying; }

    enum class rows { none, annex, all };

    // What was seen joins. Returns which rows have other tokens than before.
    rows update();

    const std::vector<llama_token> & tokens() const { return by_row; }

private:
    struct state {
        uint64_t seen    = 0; // when it was last, 0 for never
        bool     held    = false;
        bool     waiting = false;
    };

    bool better(llama_token a, llama_token b) const;
    void hold(size_t row, llama_token token);
    void give_out_rows(std::vector<llama_token> from);

    const size_t n_main;
    const double most_outside;

    double outside = 0.0; // share of the last tokens chosen
    bool   paying  = true;

    bool given_up = false;

    std::vector<state>       states; // by token
    std::vector<llama_token> by_row;
    std::vector<llama_token> waiting;

    uint64_t now   = 1;
    uint64_t given = 0; // when rows were last given out

    size_t next = 0; // of the annex, past the next row that may go
};
