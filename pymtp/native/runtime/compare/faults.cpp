#include "compare/faults.h"

#include "pair.h"

#include "threads/compute_guard.h"

#include <stdexcept>

void pymtp_fault_in_prefill(pymtp_pair & pair, int32_t seq) {
    if (pair.fault == PYMTP_FAULT_EMPTY_HEAD) {
        llama_memory_seq_rm(llama_get_memory(pair.draft.get()), seq, 0, -1);
    }
}

void pymtp_fault_before_decode(const pymtp_pair & pair) {
    if (pair.fault == PYMTP_FAULT_ASSERTION) {
        GGML_ABORT("this call was told to fail");
    }
    if (pair.fault == PYMTP_FAULT_ASSERTION_THREADS) {
        pymtp_compute_break(llama_n_threads(pair.target.get()), 10);
    }
    if (pair.fault == PYMTP_FAULT_ASSERTION_THREAD) {
        // fails in one thread while the others go on, so the process must end
        pymtp_compute_break(1, 1);
    }
}

void pymtp_fault_in_decode(const pymtp_pair & pair) {
    if (pair.fault == PYMTP_FAULT_DECODE_THROWS || pair.fault == PYMTP_FAULT_CLEAR_THROWS) {
        throw std::runtime_error("a fault on purpose, after a decode");
    }
}

void pymtp_fault_in_copy(const pymtp_pair & pair) {
    if (pair.fault == PYMTP_FAULT_COPY_THROWS) {
        throw std::runtime_error("a fault on purpose, half way through a copy");
    }
}

void pymtp_fault_in_clear(const pymtp_pair & pair) {
    if (pair.fault == PYMTP_FAULT_CLEAR_THROWS) {
        throw std::runtime_error("a fault on purpose, while a sequence is emptied");
    }
}

llama_seq_id pymtp_fault_chain_sequence(const pymtp_pair & pair, int32_t seq, int32_t step) {
    return pair.fault == PYMTP_FAULT_MIXED_CHAIN ? (seq + step) % pair.options.n_seq_max : seq;
}
