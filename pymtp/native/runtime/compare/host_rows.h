// Hidden states on their way to the head through the host.
//
// The fused mode keeps them on the device. They come here in the prefill modes "host-copy" and "all-outputs", in drafting
// step by step, which hands out logits, and with PYMTP_FAULT_SHIFTED_ROWS. The head takes the rows that were accepted with
// the first draft step of the next round.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct pymtp_pair;
struct pymtp_sequence;

class pymtp_host_rows {
public:
    explicit pymtp_host_rows(pymtp_pair & pair);

    // Whether a sequence's hidden states are here, not on the device.
    bool holds(int32_t seq) const { return of[seq].here; }
    void clear(int32_t seq);
    void copy(int32_t from, int32_t to) { of[to] = of[from]; }

    // The head takes what it has yet to take. What is left is the hidden state that the next token goes with: n_embd floats.
    int level(int32_t seq);
    const float * last_row(int32_t seq) const { return of[seq].hidden.data(); }
    void begin_after(int32_t seq, const float * row);

    // Brings the hidden state that the next token goes with from the device.
    int fetch(int32_t seq);
    // The head takes what it has yet to take, and the last hidden state goes to the device.
    int hand_over(int32_t seq);

    // The hidden states of n tokens of a prompt, from row `offset` of the target's batch, go through the head.
    int take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset);

    // Around a verification of n tokens.
    int  begin_verify(int32_t seq, llama_token first);
    void end_verify(int32_t seq, const llama_token * tokens, int32_t n);
    void rewind(int32_t seq, int32_t n_keep);

    // One draft step, and n of them, each from the token sampled in the one before.
    int  draft_step(int32_t seq, llama_token token);
    int  draft_tokens(
            int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences, int32_t & n_made);
    void take_back_step(int32_t seq);

private:
    struct rows {
        bool here = false;

        llama_token drafted_from = LLAMA_TOKEN_NULL; // the token of row n_head-1, when the target does not hold it yet

        // tokens n_head .. n_past-1, which the head has yet to take, and the hidden states n_head-1 .. n_past-1: one
        // more, for the token to come (none of both while drafted_from is set)
        std::vector<llama_token> unsynced;
        std::vector<float>       hidden;

        std::vector<float> recycled;     // the head's own hidden state of the last draft step
        std::vector<float> shifted;      // for PYMTP_FAULT_SHIFTED_ROWS: the last row taken, then the rows before the next
        std::vector<float> drafted_with; // the target's hidden state that drafted_from went with
    };

    const float * rows_for(rows & r, int32_t n);
    int sync(int32_t seq, int32_t n, const float * hidden);
    int first_step(int32_t seq, llama_token token);

    pymtp_pair &      pair;
    std::vector<rows> of; // each sequence
};
