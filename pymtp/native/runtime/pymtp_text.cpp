#include "pymtp_text.h"

#include "api_guard.h"
#include "text_index.h"

#include <algorithm>

pymtp_text * pymtp_text_init(void) {
    return pymtp_guarded<pymtp_text *>(nullptr, [] { return new pymtp_text; });
}

void pymtp_text_free(pymtp_text * text) {
    delete text;
}

int pymtp_text_add(pymtp_text * text, const llama_token * tokens, int32_t n) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        if (n < 0) {
            pymtp_set_error("tokens are counted from zero");
            return PYMTP_INVALID;
        }
        text->add(tokens, n);
        return PYMTP_OK;
    });
}

int pymtp_text_keep_last(pymtp_text * text, int64_t n) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        if (n < 0) {
            pymtp_set_error("tokens are counted from zero");
            return PYMTP_INVALID;
        }
        text->keep_last(n);
        return PYMTP_OK;
    });
}

int64_t pymtp_text_size(const pymtp_text * text) {
    return text->size();
}

int64_t pymtp_text_bytes(const pymtp_text * text) {
    return text->bytes();
}

int32_t pymtp_text_guess(
        const pymtp_text * text, const pymtp_text * other, const llama_token * drafts, int32_t n_drafts, int32_t n_max,
        llama_token * tokens, int32_t * lengths, int32_t * votes, int32_t * of) {
    return pymtp_guarded<int32_t>(PYMTP_FAILED, [&]() -> int32_t {
        const auto is_token = [](llama_token token) { return token >= 0; };
        if (n_drafts < 0 || n_max < 0 || !std::all_of(drafts, drafts + n_drafts, is_token)) {
            pymtp_set_error("drafts are tokens, which are numbers from 0");
            return PYMTP_INVALID;
        }
        std::vector<pymtp_guess> guesses(n_max);
        const int32_t n = pymtp_guess_next(*text, other, drafts, n_drafts, n_max, guesses.data());
        for (int32_t i = 0; i < n; ++i) {
            tokens[i]  = guesses[i].token;
            lengths[i] = guesses[i].length;
            votes[i]   = guesses[i].votes;
            of[i]      = guesses[i].of;
        }
        return n;
    });
}
