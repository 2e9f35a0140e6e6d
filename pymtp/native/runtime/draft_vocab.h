// The draft vocabulary: the tokens that drafts are made over, when that is not the whole vocabulary. FR-Spec (arXiv
// 2502.14856), with a set that follows the text.
//
// It starts with the tokenizer's earliest tokens, because a BPE vocabulary lists its merges from the most frequent on.
// Tokens that can be generated but are no merges, such as the end of a turn, rank before them. A token of the text
// that is not in the set joins it, and the token that was seen longest ago leaves; among those never seen, the latest
// merge leaves.
//
// Each token has a row. Only the last few rows, the recent ones, change as tokens join; when all of them have changed,
// all rows are assigned again.
//
// While too many tokens of the text are outside the set, as in another language, drafts over the whole vocabulary are
// better.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// Returns the size of the draft vocabulary when n tokens are asked for (0: all): it is a multiple of
// PYMTP_ROW_MULTIPLE.
int32_t pymtp_draft_vocab_size(int32_t n_vocab, int32_t n);

class pymtp_draft_vocab {
public:
    // n: the size, a multiple of PYMTP_ROW_MULTIPLE, at least two of them, less than the vocabulary. max_outside: the
    // share of generated tokens outside the set above which drafts over the whole vocabulary are better
    pymtp_draft_vocab(const llama_vocab & vocab, int32_t n, double max_outside);

    static int32_t n_recent(int32_t n);

    // Records tokens of the text, in order. They join with the next update.
    void observe(const llama_token * text, size_t n);

    // Records tokens that the target has sampled, which drafts could have proposed.
    void observe_sampled(const llama_token * text, size_t n);

    // Forgets the share of sampled tokens outside the set, because it says nothing about the text to come.
    void reset_usage() {
        outside_share = 0.0;
        worthwhile    = !disabled;
    }

    // Stops using the draft vocabulary for good.
    void disable() {
        disabled   = true;
        worthwhile = false;
    }

    bool contains(llama_token token) const { return states[token].in_vocab; }

    // Tells whether drafts over the set are better than over the whole vocabulary.
    bool is_worthwhile() const { return worthwhile; }

    enum class rows { none, recent, all };

    // Lets the waiting tokens join. Returns which rows have changed.
    rows update();

    const std::vector<llama_token> & tokens() const { return row_tokens; }

private:
    struct state {
        uint64_t last_seen = 0; // time of the last occurrence, 0 for never
        bool     in_vocab  = false;
        bool     waiting   = false;
    };

    bool ranks_before(llama_token a, llama_token b) const;
    void assign(size_t row, llama_token token);
    void assign_all_rows(std::vector<llama_token> from);

    const size_t n_main;
    const double max_outside;

    double outside_share = 0.0; // share of the last sampled tokens that were outside the set
    bool   worthwhile    = true;

    bool disabled = false;

    std::vector<state>       states; // by token
    std::vector<llama_token> row_tokens;
    std::vector<llama_token> waiting;

    uint64_t now         = 1;
    uint64_t assigned_at = 0; // time of the last assignment of all rows

    size_t next_free = 0; // end of the recent rows that may still be replaced; they are used from the last one down
};
