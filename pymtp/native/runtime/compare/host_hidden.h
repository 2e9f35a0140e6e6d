// Passes hidden states to the head through the host.
//
// The fused mode keeps them on the device. They pass through here in the prefill modes "host-copy" and "all-outputs",
// when drafting step by step (which returns logits), and with PYMTP_FAULT_SHIFTED_ROWS. The head processes accepted
// tokens with the first draft step of the next round.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

struct pymtp_pair;
struct pymtp_sequence;

class pymtp_host_hidden {
public:
    explicit pymtp_host_hidden(pymtp_pair & pair);

    // Tells whether a sequence's hidden states are on the host instead of the device.
    bool holds(int32_t seq) const { return sequences[seq].on_host; }
    void clear(int32_t seq);
    void copy(int32_t from, int32_t to) { sequences[to] = sequences[from]; }

    // Lets the head process all tokens that it lags behind. One hidden state is left, for the next token: last_row(),
    // n_embd floats.
    int catch_up(int32_t seq);
    const float * last_row(int32_t seq) const { return sequences[seq].hidden.data(); }
    void set_last_row(int32_t seq, const float * row);

    // Copies the hidden state for the next token from the device.
    int fetch_from_device(int32_t seq);
    // Lets the head catch up, and moves the last hidden state to the device.
    int move_to_device(int32_t seq);

    // Lets the head process n tokens of a prompt, with the hidden states from row `offset` of the target's batch on.
    int take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset);

    // Run before and after a verification of n tokens.
    int  begin_verify(int32_t seq, llama_token first);
    void end_verify(int32_t seq, const llama_token * tokens, int32_t n);
    void rewind(int32_t seq, int32_t n_keep);

    // Run one draft step, or n of them, each from the token that the step before has sampled.
    int  draft_step(int32_t seq, llama_token token);
    int  draft_tokens(
            int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences, int32_t & n_made);
    void undo_first_step(int32_t seq);

private:
    struct rows {
        bool on_host = false;

        // the token of the head's last row, while the target does not hold it
        llama_token drafted_from = LLAMA_TOKEN_NULL;

        // the tokens n_head to n_past-1, which the head has yet to process, and the hidden states n_head-1 to
        // n_past-1: one more, for the next token (both are empty while drafted_from is set)
        std::vector<llama_token> unsynced;
        std::vector<float>       hidden;

        std::vector<float> head_hidden; // the head's own hidden state after the last draft step
        // for PYMTP_FAULT_SHIFTED_ROWS: the last row used, then the rows before the next
        std::vector<float> shifted;
        std::vector<float> drafted_with; // the target's hidden state that drafted_from was combined with
    };

    const float * rows_for(rows & r, int32_t n);
    int sync(int32_t seq, int32_t n, const float * hidden);
    int first_step(int32_t seq, llama_token token);

    pymtp_pair &      pair;
    std::vector<rows> sequences; // by sequence
};
