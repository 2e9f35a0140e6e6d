// The C API of texts in which the end of a text is searched for, see text_index.h. It needs no model.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// The tokens of a text, and an index of its n-grams. One call at a time may use a text.
struct pymtp_text;
PYMTP_API struct pymtp_text * pymtp_text_init(void); // returns NULL when there is no memory
PYMTP_API void    pymtp_text_free(struct pymtp_text * text);
// Appends n tokens; a negative one, such as that of an image, ends one text and begins another. If the call fails,
// nothing was appended.
PYMTP_API int     pymtp_text_add(struct pymtp_text * text, const llama_token * tokens, int32_t n);
// Forgets all but the last n tokens. If the call fails, nothing was forgotten.
PYMTP_API int     pymtp_text_keep_last(struct pymtp_text * text, int64_t n);
PYMTP_API int64_t pymtp_text_size(const struct pymtp_text * text);  // returns the number of tokens
PYMTP_API int64_t pymtp_text_bytes(const struct pymtp_text * text); // returns the bytes of host memory

// Guesses up to n_max tokens that follow `text` and then the n_drafts drafts, as pymtp_guess_next does. Writes the
// members of each guess to the four arrays, which have n_max items. Returns the number of guesses; PYMTP_INVALID for
// drafts that are no tokens; PYMTP_FAILED if there is too little memory.
// other: earlier texts; may be NULL
PYMTP_API int32_t pymtp_text_guess(
        const struct pymtp_text * text, const struct pymtp_text * other, const llama_token * drafts, int32_t n_drafts,
        int32_t n_max, llama_token * tokens, int32_t * lengths, int32_t * votes, int32_t * of);

#ifdef __cplusplus
}
#endif
