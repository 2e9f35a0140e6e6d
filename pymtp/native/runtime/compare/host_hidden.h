// Passes hidden states of the target to the head through host memory.
//
// In the fused mode hidden states stay on the device. They pass through the host in the prefill modes "host-copy" and
// "all-outputs", when drafting step by step (which returns logits), and with PYMTP_FAULT_SHIFTED_ROWS. The head then
// processes accepted tokens together with the first draft step of the next round.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

class pymtp_head_sync;
class pymtp_sequence;
struct pymtp_contexts;

class pymtp_host_hidden {
public:
    pymtp_host_hidden(pymtp_head_sync & head, pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences);

    // Returns whether the hidden states of a sequence are on the host instead of the device.
    bool holds(int32_t seq) const { return rows_of[seq].on_host; }
    void clear(int32_t seq);
    void copy(int32_t from, int32_t to) { rows_of[to] = rows_of[from]; }

    // Lets the head process all tokens that it lags behind the target. Afterwards one hidden state of n_embd floats is
    // left, for the next token; last_row() returns it.
    void catch_up(int32_t seq);
    const float * last_row(int32_t seq) const { return rows_of[seq].hidden.data(); }
    void set_last_row(int32_t seq, const float * row);

    // Copies the hidden state that the next token is combined with from the device to the host.
    void fetch_from_device(int32_t seq);
    // Lets the head process all tokens that it lags behind, and moves the hidden state for the next token to the
    // device.
    void move_to_device(int32_t seq);

    // Lets the head process n tokens of a prompt. Their hidden states are the rows of the target's batch from `offset`
    // on.
    void take_prompt(int32_t seq, const llama_token * tokens, int32_t n, int32_t offset);

    // begin_verify must be called before a verification, and end_verify after a verification of n tokens.
    void begin_verify(int32_t seq, llama_token first);
    void end_verify(int32_t seq, const llama_token * tokens, int32_t n);
    void rewind(int32_t seq); // must be called after the sequence was rewound

    // draft_step runs one draft step. draft_tokens runs n draft steps; each further step starts from the token that the
    // step before has sampled. It returns the number of drafts: fewer than n if the head's logits are not finite.
    void    draft_step(int32_t seq, llama_token token);
    int32_t draft_tokens(int32_t seq, llama_token token, int32_t n, llama_token * drafts, float * confidences);
    void undo_first_step(int32_t seq);

private:
    struct rows {
        bool on_host = false;

        // The token of the last row in the head's cache, if the target does not hold this token yet.
        llama_token drafted_from = LLAMA_TOKEN_NULL;

        // unsynced: the tokens n_head to n_past-1, which the head has yet to process. hidden: the hidden states
        // n_head-1 to n_past-1, one more than there are tokens, because the last is for the next token. Both are empty
        // while drafted_from is set.
        std::vector<llama_token> unsynced;
        std::vector<float>       hidden;

        std::vector<float> head_hidden; // the head's own hidden state after the last draft step
        // For PYMTP_FAULT_SHIFTED_ROWS: the last row of the previous call of rows_for(), then the right rows of this
        // call. So each token gets the row before its own.
        std::vector<float> shifted;
        std::vector<float> drafted_with; // the target's hidden state that drafted_from was combined with
    };

    const float * rows_for(rows & r, int32_t n);
    void sync(int32_t seq, int32_t n, const float * hidden);
    void first_step(int32_t seq, llama_token token);

    pymtp_head_sync &             head;
    pymtp_contexts &              contexts;
    std::vector<pymtp_sequence> & sequences;

    std::vector<rows> rows_of; // one entry for each sequence
};
