#include "states.h"

#include "llama-memory-hybrid.h"

llama_memory_recurrent * pymtp_states_of(llama_context * ctx) {
    auto * hybrid = dynamic_cast<llama_memory_hybrid *>(llama_get_memory(ctx));
    return hybrid ? hybrid->get_mem_recr() : nullptr;
}

void pymtp_place_state(llama_memory_recurrent & states, llama_seq_id seq) {
    auto & cell = states.cells[seq];
    if (cell.tail >= 0 || !cell.is_empty()) { // tail: the cell of the sequence of this number
        return;
    }
    cell.tail = seq;
    cell.seq_id.insert(seq);
    states.used++;
}
