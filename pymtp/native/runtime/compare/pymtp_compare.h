// What Python calls for comparisons and tests: drafting step by step, faults on purpose, and a look inside.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// Mistakes made on purpose by tests. The first two leave drafts fluent and greedy text unchanged: tests must notice them.
enum pymtp_fault {
    PYMTP_FAULT_NONE          = 0,
    PYMTP_FAULT_EMPTY_HEAD    = 1, // the prompt does not pass through the head
    PYMTP_FAULT_SHIFTED_ROWS  = 2, // a token goes with the hidden state before the one that belongs to it
    PYMTP_FAULT_DECODE_THROWS = 3, // an exception after each decode
    PYMTP_FAULT_CLEAR_THROWS  = 4, // the same, and another while sequences are emptied
    PYMTP_FAULT_MIXED_CHAIN   = 5, // a chain of drafts is of two sequences, which must be refused
    PYMTP_FAULT_MORE_OUTPUTS  = 6, // every token of a prompt is an output, for which there may be no room: likewise
    // An assertion fails in the next decode:
    PYMTP_FAULT_ASSERTION         = 7, // in the calling thread
    PYMTP_FAULT_ASSERTION_THREADS = 8, // in every thread that computes
    PYMTP_FAULT_ASSERTION_THREAD  = 9, // in one of several: this ends the process

    PYMTP_FAULT_COPY_THROWS = 10, // an exception in a copy, between the target's part and the head's
};

PYMTP_API void pymtp_pair_break(struct pymtp_pair * pair, enum pymtp_fault fault);

// From now on, or no more, recurrent layers in the host's memory are computed as those of a GPU are.
PYMTP_API int pymtp_pair_as_devices(struct pymtp_pair * pair, bool on);

// One draft step: token is the one after the last that the sequence holds or, when called again, the draft just made.
// logits: the head's n_vocab floats for the token after it, valid until the next call.
PYMTP_API int pymtp_pair_draft(struct pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits);

// The nodes computed since the last call, in order, where the pair was made to record them. A line each: "target" or
// "draft", name, operation, 1 when its data
// begin on a cache line, the elements of its largest source, four sizes.
// Valid until the next call.
PYMTP_API const char * pymtp_pair_trace(struct pymtp_pair * pair);

// What the CPU's nodes of one operation came to, and of one type of weights where it is a product with weights, else "".
struct pymtp_op_time {
    char    op[32];
    char    weights[16];
    int64_t nodes;
    double  seconds;         // of the thread that makes the call
    double  waiting_seconds; // of these, for the other threads to finish
    int64_t weight_bytes;    // read; of experts, those that were chosen
};

// From now on, or no more, what is computed is timed by operation, which adds three looks at a clock to each node.
PYMTP_API int pymtp_pair_time_ops(struct pymtp_pair * pair, bool on);

// What was computed since the last call, while it was timed, at most n_max of them. Returns how many, -1 on failure.
PYMTP_API int32_t pymtp_pair_op_times(struct pymtp_pair * pair, struct pymtp_op_time * times, int32_t n_max);

// Reads a buffer of so many bytes n_times, each thread a part of it: how long each took. What a machine's memory brings.
PYMTP_API int pymtp_read_memory(size_t bytes, int32_t n_threads, int32_t n_times, double * seconds);

// What the head's cache holds of a sequence, as llama.cpp saves it: positions, then the rows of K, then those of V.
// needed: the bytes it takes, 0 without drafts. They are written where size is enough.
PYMTP_API int pymtp_pair_head_state(struct pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size, size_t * needed);

#ifdef __cplusplus
}
#endif
