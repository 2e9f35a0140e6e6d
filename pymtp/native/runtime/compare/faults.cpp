#include "compare/faults.h"

#include "contexts.h"

#include "threads/compute_guard.h"

#include <stdexcept>

void pymtp_fault_in_prefill(pymtp_contexts & contexts, int32_t seq) {
    if (contexts.fault == PYMTP_FAULT_EMPTY_HEAD) {
        llama_memory_seq_rm(llama_get_memory(contexts.draft.get()), seq, 0, -1);
    }
}

void pymtp_fault_before_decode(const pymtp_contexts & contexts) {
    if (contexts.fault == PYMTP_FAULT_ASSERTION) {
        GGML_ABORT("this call was told to fail");
    }
    if (contexts.fault == PYMTP_FAULT_ASSERTION_THREADS) {
        pymtp_compute_break(llama_n_threads(contexts.target.get()), 10);
    }
    if (contexts.fault == PYMTP_FAULT_ASSERTION_THREAD) {
        // fails in one thread while the others go on, so the process must end
        pymtp_compute_break(1, 1);
    }
}

void pymtp_fault_in_decode(const pymtp_contexts & contexts) {
    if (contexts.fault == PYMTP_FAULT_DECODE_THROWS || contexts.fault == PYMTP_FAULT_CLEAR_THROWS) {
        throw std::runtime_error("a fault on purpose, after a decode");
    }
}

void pymtp_fault_in_copy(const pymtp_contexts & contexts) {
    if (contexts.fault == PYMTP_FAULT_COPY_THROWS) {
        throw std::runtime_error("a fault on purpose, half way through a copy");
    }
}

void pymtp_fault_in_clear(const pymtp_contexts & contexts) {
    if (contexts.fault == PYMTP_FAULT_CLEAR_THROWS) {
        throw std::runtime_error("a fault on purpose, while a sequence is emptied");
    }
}

llama_seq_id pymtp_fault_chain_sequence(const pymtp_contexts & contexts, int32_t seq, int32_t step) {
    return contexts.fault == PYMTP_FAULT_MIXED_CHAIN ? (seq + step) % contexts.options.n_seq_max : seq;
}
