// The state of one sequence of a pair: which of its tokens the target and the head have processed, and its sampling.
#pragma once

#include "images.h"
#include "pymtp.h"
#include "sampler.h"

#include <memory>
#include <vector>

class pymtp_sequence {
public:
    int32_t n_past()    const { return past; }    // number of tokens that the target holds
    int32_t n_rewind()  const { return undoable; } // number of these that can be rewound: the drafts just verified
    int32_t n_drafted() const { return drafted; } // number of drafts made since the last verification

    // Number of rows in the head's cache that were computed from the target's hidden states. Fewer than n_past while
    // the head lags behind; one more than n_past between calls of pymtp_pair_draft_step.
    int32_t n_head() const { return head; }
    int32_t lag()    const { return past - head; }

    // Number of tokens whose K and V are staged in the first cells of the empty sequence, see pymtp_pair_load_cells.
    int32_t n_staged() const { return staged; }

    bool is_empty() const { return past == 0 && drafted == 0; }

    // the n_past tokens, then the token that the drafts started from and the drafts
    const std::vector<llama_token> & tokens() const { return all_tokens; }

    // the images among the tokens, and among those that the target is about to process
    const pymtp_image_runs & images() const { return image_runs; }
    // Returns which row of its image the token at pos is.
    int32_t image_row(int32_t pos) const;

    // whether the head's logits were not finite at some time, so that its cells may hold NaN, until they are zeroed
    bool head_has_nan = false;

    // ── transitions ──

    // Forgets everything but the sampler, the staged tokens and head_has_nan.
    void clear();
    // Called before the target processes tokens of a prompt.
    void begin_prompt(const pymtp_images & images, const llama_token * tokens, int32_t n);
    // Adds tokens of a prompt, which the target has processed.
    void append(const llama_token * tokens, int32_t n);
    // Begins n draft steps, of which the first starts from `token`.
    void begin_drafts(llama_token token, int32_t n);
    void add_draft(llama_token token) { all_tokens.push_back(token); }
    void discard_drafts();
    // Called before and after the target processes n tokens, of which all but the first can be rewound.
    void begin_verify(const llama_token * tokens, int32_t n);
    void end_verify(int32_t n);
    // Called when the verified drafts count as judged, so that the next draft step is the first one.
    void end_drafts() { drafted = 0; }
    void forbid_rewind() { undoable = 0; }
    void rewind(int32_t n_keep);
    void set_head(int32_t n) { head = n; }
    void stage(int32_t n) { staged = n; }
    // Makes the staged tokens those that target and head hold.
    void load(const pymtp_images & images, const llama_token * tokens, int32_t n, bool with_head);
    void copy(const pymtp_sequence & from, int32_t n_vocab);

    // ── the logits of the last token of a prompt ──

    const float * first_logits() const { return logits; } // null if there are none
    void keep_logits(const float * row, int32_t n_vocab); // copies them
    void borrow_logits(const float * row) { logits = row; }
    void return_logits() { logits = copied_logits.empty() ? nullptr : logits; } // forgets borrowed ones
    void forget_logits();

    // ── sampling ──

    std::unique_ptr<pymtp_sampler> sampler; // null until pymtp_pair_set_sampling
    std::vector<pymtp_logprob>     logprobs; // for the last tokens sampled with the target, if asked for

    // Samples the token after the first n_prefix tokens. Returns PYMTP_FAILED when a logit is not a number, and
    // PYMTP_DEAD_END when the grammar allows no token.
    // confidence: receives the head's probability of a draft; null unless the token is a draft
    int sample(const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence);

private:
    int32_t past     = 0;
    int32_t undoable = 0;
    int32_t drafted  = 0;
    int32_t head     = 0;
    int32_t staged   = 0;

    std::vector<llama_token> all_tokens;
    pymtp_image_runs         image_runs;
    const float *            logits = nullptr; // in the logits of the last prefill, or in copied_logits
    std::vector<float>       copied_logits;
};
