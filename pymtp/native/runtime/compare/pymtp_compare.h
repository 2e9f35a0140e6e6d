// The C API for comparisons and tests: drafting step by step, fault injection, and introspection.
#pragma once

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// Faults that tests inject. The first two leave drafts fluent and greedy text unchanged, so tests must detect them in
// another way.
enum pymtp_fault {
    PYMTP_FAULT_NONE          = 0,
    PYMTP_FAULT_EMPTY_HEAD    = 1, // the head does not process the prompt
    PYMTP_FAULT_SHIFTED_ROWS  = 2, // tokens are combined with the hidden state before the right one
    PYMTP_FAULT_DECODE_THROWS = 3, // throw an exception after each decode
    PYMTP_FAULT_CLEAR_THROWS  = 4, // throw after each decode, and while sequences are cleared
    PYMTP_FAULT_MIXED_CHAIN   = 5, // a chain of drafts mixes two sequences, which must be refused
    PYMTP_FAULT_MORE_OUTPUTS  = 6, // every token of a prompt is an output, which must be refused when there is no room
    // an assertion fails in the next decode:
    PYMTP_FAULT_ASSERTION         = 7, // in the calling thread
    PYMTP_FAULT_ASSERTION_THREADS = 8, // in every thread that computes
    PYMTP_FAULT_ASSERTION_THREAD  = 9, // in one of several threads, which ends the process

    PYMTP_FAULT_COPY_THROWS = 10, // throw within a copy, between the target's part and the head's
};

PYMTP_API void pymtp_pair_inject_fault(struct pymtp_pair * pair, enum pymtp_fault fault);

// Switches, for recurrent layers in host memory, to the operations that other devices use.
PYMTP_API int pymtp_pair_force_device_ops(struct pymtp_pair * pair, bool on);

// Runs one draft step. token: the one after the last that the sequence holds or, in further calls, the draft just
// made. logits: n_vocab floats of the head for the next token, valid until the next call.
PYMTP_API int pymtp_pair_draft_step(struct pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits);

// Returns the nodes computed since the last call, in order, if the pair records them. Each line has: "target" or
// "draft", name, operation, 1 if its data start on a cache line, the elements of its largest source, four sizes. Valid
// until the next call.
PYMTP_API const char * pymtp_pair_trace(struct pymtp_pair * pair);

// The time of the CPU's nodes of one operation; for products with weights, of one type of weights.
struct pymtp_op_time {
    char    op[32];
    char    weights[16]; // the type of the weights, "" for other operations
    int64_t nodes;
    double  seconds;         // of the thread that makes the call
    double  waiting_seconds; // the part spent waiting for the other threads
    int64_t weight_bytes;    // bytes read; of experts, those that were chosen
};

// Starts or stops timing by operation, which reads a clock three times for each node.
PYMTP_API int pymtp_pair_time_ops(struct pymtp_pair * pair, bool on);

// Reports the times since the last call, at most n_max of them. Returns their number, -1 on failure.
PYMTP_API int32_t pymtp_pair_op_times(struct pymtp_pair * pair, struct pymtp_op_time * times, int32_t n_max);

// Measures memory bandwidth: reads a buffer of so many bytes n_times, each thread a part of it. seconds: the time of
// each pass
PYMTP_API int pymtp_read_memory(size_t bytes, int32_t n_threads, int32_t n_times, double * seconds);

// Returns the head's cache of a sequence in llama.cpp's format: positions, then the rows of K, then those of V.
// needed: the bytes that it takes, 0 without drafts. data is only written when size is large enough.
PYMTP_API int pymtp_pair_head_state(struct pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size,
        size_t * needed);

#ifdef __cplusplus
}
#endif
