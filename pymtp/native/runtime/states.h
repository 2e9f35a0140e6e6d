// Where the target keeps the recurrent states of sequences.
#pragma once

#include "llama.h"

class llama_memory_recurrent;

// A context's recurrent memory, or null where it has none.
llama_memory_recurrent * pymtp_states_of(llama_context * ctx);

// Gives a sequence that holds nothing the cell of its own number, if that is free.
//
// llama.cpp takes the next free cell, and swaps cells within a decode until those of a ubatch lie side by side in rising
// order. A sequence that is not in the ubatch can be moved that way: its snapshots would stay behind, and a decode that is
// cancelled could leave it half moved. Ubatches are of consecutive sequences, so that cells by number are never swapped.
void pymtp_place_state(llama_memory_recurrent & states, llama_seq_id seq);
