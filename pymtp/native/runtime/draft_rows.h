// The draft vocabulary of a pair: maintains the set of its tokens (draft_vocab.h), and copies the tokens' rows of the
// output layer from the model's file to the device.
#pragma once

#include "contexts.h"
#include "draft_vocab.h"
#include "file_rows.h"
#include "model.h"

#include <memory>

// While an object of this class lives, drafts use the reduced output layer if `value` is true, otherwise the whole
// layer.
class pymtp_reduced_output_scope {
public:
    pymtp_reduced_output_scope(pymtp_contexts & contexts, bool value);
    ~pymtp_reduced_output_scope();

private:
    llama_context * draft;
};

class pymtp_draft_rows {
public:
    // Allocates the reduced output layer, unless drafts always use the whole vocabulary.
    pymtp_draft_rows(const pymtp_contexts & contexts, const pymtp_model & model);

    // Record tokens of the text, or tokens that the target has sampled. They join the set with the next write().
    void observe(const llama_token * text, size_t n);
    void observe_sampled(const llama_token * text, size_t n);

    // Updates the set and its rows on the device. Does nothing while drafts use the whole vocabulary. If the model's
    // file cannot be read any more, drafts use the whole vocabulary from then on.
    void write();

    // Decides which tokens the next drafts are chosen from: all tokens, unless the drafts may use the reduced layer.
    void begin_drafts(bool may_reduce) { is_reduced = may_reduce && is_used(); }

    // Returns whether the last drafts were chosen from the set.
    bool reduced() const { return is_reduced; }

    // Returns the number of tokens that the last drafts were chosen from, and that drafts would now be chosen from.
    int32_t n_last() const { return is_reduced ? set->tokens().size() : n_vocab; }
    int32_t n_next() const { return is_used() ? set->tokens().size() : n_vocab; }

    // Returns whether the token was among those that the last drafts were chosen from.
    bool contains(llama_token token) const {
        return !is_reduced || (token >= 0 && token < n_vocab && set->contains(token));
    }

    // Resets the share of sampled tokens outside the set, for a new text.
    void reset_usage();

private:
    bool is_used() const { return set && set->is_worthwhile(); }

    llama_context * const draft;
    const int32_t         n_vocab;

    std::unique_ptr<pymtp_draft_vocab>     set; // null if drafts always use the whole vocabulary
    std::shared_ptr<const pymtp_file_rows> file;

    pymtp_draft_vocab::rows stale = pymtp_draft_vocab::rows::all; // the rows that must be written to the device
    bool is_reduced = false;
};
