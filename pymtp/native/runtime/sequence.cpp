#include "sequence.h"

#include <algorithm>
#include <utility>

void pymtp_sequence::clear() {
    pymtp_sequence empty;
    empty.sampler      = std::move(sampler);
    empty.staged       = staged;
    empty.head_has_nan = head_has_nan;
    *this = std::move(empty);
}

void pymtp_sequence::begin_prompt(const pymtp_images & images, const llama_token * tokens, int32_t n) {
    images.extend(image_runs, past, tokens, n);
}

int32_t pymtp_sequence::image_row(int32_t pos) const {
    const auto after = std::find_if(image_runs.begin(), image_runs.end(),
            [&](const pymtp_image_run & run) { return pos < run.end(); });
    return pos - after->first;
}

void pymtp_sequence::append(const llama_token * tokens, int32_t n) {
    past    += n;
    undoable = 0;
    all_tokens.insert(all_tokens.end(), tokens, tokens + n);
}

void pymtp_sequence::begin_drafts(llama_token token, int32_t n) {
    all_tokens.push_back(token);
    undoable = 0;
    drafted  = n;
}

void pymtp_sequence::discard_drafts() {
    drafted = 0;
    staged  = 0; // drafts of an empty sequence have overwritten the staged cells
    all_tokens.resize(past);
}

void pymtp_sequence::begin_verify(const llama_token * tokens, int32_t n) {
    all_tokens.resize(past);
    all_tokens.insert(all_tokens.end(), tokens, tokens + n);
}

void pymtp_sequence::end_verify(int32_t n) {
    past    += n;
    undoable = n - 1;
    forget_logits();
}

void pymtp_sequence::rewind(int32_t n_keep) {
    undoable -= past - n_keep;
    past      = n_keep;
    all_tokens.resize(n_keep);
}

void pymtp_sequence::load(const pymtp_images & images, const llama_token * tokens, int32_t n, bool with_head) {
    past   = n;
    head   = with_head ? n : 0;
    staged = 0;
    all_tokens.assign(tokens, tokens + n);
    image_runs.clear();
    images.extend(image_runs, 0, tokens, n);
}

void pymtp_sequence::copy(const pymtp_sequence & from, int32_t n_vocab) {
    past          = from.past;
    head          = from.head;
    head_has_nan |= from.head_has_nan;
    all_tokens    = from.all_tokens;
    image_runs    = from.image_runs;
    if (from.logits) {
        keep_logits(from.logits, n_vocab);
    }
}

void pymtp_sequence::keep_logits(const float * row, int32_t n_vocab) {
    copied_logits.assign(row, row + n_vocab);
    logits = copied_logits.data();
}

void pymtp_sequence::forget_logits() {
    logits        = nullptr;
    copied_logits = {};
}

int pymtp_sequence::sample(const pymtp_logits & from, size_t n_prefix, llama_token * token, float * confidence) {
    const auto sampled = sampler->sample(from, n_prefix, all_tokens.data(), n_prefix, confidence != nullptr);
    if (sampled.token == LLAMA_TOKEN_NULL) {
        return PYMTP_FAILED;
    }
    *token = sampled.token;
    if (confidence) {
        // A draft that the grammar does not allow is harmless, because the target will not sample that token.
        *confidence = sampled.confidence;
        return PYMTP_OK;
    }
    if (!sampled.allowed) {
        return PYMTP_DEAD_END;
    }
    // If log-probabilities are asked for, `from` is a whole row of logits.
    sampler->append_logprobs(from.values, sampled.token, logprobs);
    return PYMTP_OK;
}
