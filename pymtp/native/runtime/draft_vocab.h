// The draft vocabulary is a set of tokens. Drafts are chosen among these tokens instead of the whole vocabulary, as in
// FR-Spec (arXiv 2502.14856); unlike there, the set changes with the text.
//
// At first the set holds the tokens with the lowest ids, because a BPE vocabulary lists its merges from the most
// frequent to the rarest. Tokens that can be generated but are not merges, such as the end of a turn, come even before
// those. When a token outside the set occurs in the text, it joins the set, and the token that was seen longest ago
// leaves; among tokens that were never seen, the one with the highest id leaves first.
//
// Each token of the set has a row in the reduced output layer. When a token joins, it gets one of the last rows, the
// "recent" rows. When all recent rows have been replaced, the tokens of the set are assigned to rows anew.
//
// While too many tokens of the text are outside the set, as after a change of language, drafts are made over the whole
// vocabulary instead.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// Returns the size of the draft vocabulary for a requested size of n tokens: n rounded up to a multiple of
// PYMTP_ROW_MULTIPLE, or the whole vocabulary if n is 0 or not smaller than it.
int32_t pymtp_draft_vocab_size(int32_t n_vocab, int32_t n);

class pymtp_draft_vocab {
public:
    // n: number of tokens in the set, a multiple of PYMTP_ROW_MULTIPLE, at least 2*PYMTP_ROW_MULTIPLE, less than the
    // whole vocabulary.
    // max_outside: when more than this share of the generated tokens is outside the set, drafts over the whole
    // vocabulary are better
    pymtp_draft_vocab(const llama_vocab & vocab, int32_t n, double max_outside);

    static int32_t n_recent(int32_t n);

    // Records tokens of the text, in order. Those outside the set will join it with the next update().
    void observe(const llama_token * text, size_t n);

    // Records tokens that the target has sampled, like observe(). Also counts how many of the tokens drafts could not
    // have proposed because they are outside the set.
    void observe_sampled(const llama_token * text, size_t n);

    // Resets the share of sampled tokens outside the set to 0, for a new text.
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

    // Returns whether drafts over the set are better than drafts over the whole vocabulary.
    bool is_worthwhile() const { return worthwhile; }

    enum class rows { none, recent, all };

    // Adds the waiting tokens to the set. Returns which rows have changed.
    rows update();

    const std::vector<llama_token> & tokens() const { return row_tokens; }

private:
    struct state {
        uint64_t last_seen = 0; // value of `now` at the token's last occurrence, 0 if it never occurred
        bool     in_vocab  = false;
        bool     waiting   = false;
    };

    bool ranks_before(llama_token a, llama_token b) const;
    void assign(size_t row, llama_token token);
    void assign_all_rows(std::vector<llama_token> from);

    const size_t n_main;
    const double max_outside;

    double outside_share = 0.0; // share of the recently sampled tokens that were outside the set
    bool   worthwhile    = true;

    bool disabled = false;

    std::vector<state>       states; // one entry for each token of the whole vocabulary
    std::vector<llama_token> row_tokens;
    std::vector<llama_token> waiting;

    uint64_t now         = 1;
    uint64_t assigned_at = 0; // value of `now` when all rows were last assigned

    // index after the last recent row that was not replaced yet; rows are replaced from the last one down
    size_t next_free = 0;
};
