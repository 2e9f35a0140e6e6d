// The C API for comparisons and tests: drafting step by step, injecting faults, and inspecting computations.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// Faults that tests inject. EMPTY_HEAD and SHIFTED_ROWS leave drafts fluent and greedy text unchanged, so tests must
// detect them in another way than by the text.
enum pymtp_fault {
    PYMTP_FAULT_NONE          = 0,
    PYMTP_FAULT_EMPTY_HEAD    = 1, // the head does not process the prompt
    PYMTP_FAULT_SHIFTED_ROWS  = 2, // the head combines each token with the hidden state before the right one
    PYMTP_FAULT_DECODE_THROWS = 3, // throw an exception after each decode
    PYMTP_FAULT_CLEAR_THROWS  = 4, // throw an exception after each decode, and while sequences are cleared
    PYMTP_FAULT_MIXED_CHAIN   = 5, // a chain of drafts mixes two sequences; the decode must refuse it
    // every token of a prompt is an output; the decode must refuse it if there is no room
    PYMTP_FAULT_MORE_OUTPUTS  = 6,
    // The three faults below make an assertion fail in the next decode:
    PYMTP_FAULT_ASSERTION         = 7, // in the calling thread
    PYMTP_FAULT_ASSERTION_THREADS = 8, // in every thread that computes
    PYMTP_FAULT_ASSERTION_THREAD  = 9, // in one of several threads, which ends the process

    PYMTP_FAULT_COPY_THROWS = 10, // throw an exception within a copy, after the target's part and before the head's
};

PYMTP_API void pymtp_pair_inject_fault(struct pymtp_pair * pair, enum pymtp_fault fault);

// Sets whether recurrent layers in host memory are computed with the operations that other devices use.
PYMTP_API int pymtp_pair_force_device_ops(struct pymtp_pair * pair, bool on);

// Writes the positions of a token for RoPE, see image_runs.h: those of time, of the row, and of the column.
PYMTP_API int pymtp_pair_rope_position(struct pymtp_pair * pair, int32_t seq, int32_t pos, int32_t * positions);

// Runs one draft step.
// token: the token after the last one that the sequence holds or, in further calls, the draft just made.
// logits: receives the head's logits for the next token, n_vocab floats that are valid until the next call
PYMTP_API int pymtp_pair_draft_step(struct pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits);

// Returns the graph nodes computed since the last call of this function, in order, if the pair was made with
// options.trace. The text has one line for each node: "target" or "draft", name, operation, 1 if the data start on a
// cache line (else 0), number of elements of the largest source, and the node's four dimensions. The text is valid
// until the next call.
PYMTP_API const char * pymtp_pair_trace(struct pymtp_pair * pair);

// The time that the CPU has spent on the graph nodes of one operation. Matrix products have one entry for each type of
// weights.
struct pymtp_op_time {
    char    op[32];
    char    weights[16]; // the type of the weights of matrix products; "" for other operations
    int64_t nodes;
    double  seconds;         // time of the thread that makes the call
    double  waiting_seconds; // part of `seconds` that was spent waiting for the other threads
    int64_t weight_bytes;    // bytes of weights that were read; of experts, only of those that were chosen
};

// Starts or stops the timing of operations. While it runs, a clock is read three times for each node.
PYMTP_API int pymtp_pair_time_ops(struct pymtp_pair * pair, bool on);

// Reports the times of operations since the last call of this function: writes at most n_max entries to `times`, and
// returns the number of entries, or -1 on failure.
PYMTP_API int32_t pymtp_pair_op_times(struct pymtp_pair * pair, struct pymtp_op_time * times, int32_t n_max);

// Measures memory bandwidth: reads a buffer of `bytes` bytes n_times. Each thread reads its own part of the buffer.
// seconds: receives the time of each of the n_times readings
PYMTP_API int pymtp_read_memory(size_t bytes, int32_t n_threads, int32_t n_times, double * seconds);

// Copies the head's cache of a sequence in llama.cpp's format: positions, then the rows of K, then the rows of V.
// data: receives the copy, but only if `size` is large enough.
// needed: receives the size of the copy in bytes; 0 if the pair makes no drafts
PYMTP_API int pymtp_pair_head_state(struct pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size,
        size_t * needed);

// Applies llama.cpp's samplers of sampling->samplers, which must not be NULL, to a row of logits.
// breakers: the n_breakers strings at which DRY ends repetitions.
// prefix: the n tokens before the sample.
// probabilities: receives the probability of each token of the vocabulary
PYMTP_API int pymtp_llama_samplers(
        const struct pymtp_model * model, const struct pymtp_sampling * sampling, const char * const * breakers,
        int32_t n_breakers, const float * logits, const llama_token * prefix, int32_t n, float * probabilities);

#ifdef __cplusplus
}
#endif
