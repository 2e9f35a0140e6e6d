// Mistakes made on purpose, see pymtp_fault. Each of these does nothing unless its fault was asked for.
#pragma once

#include "llama.h"

#include <cstdint>

struct pymtp_pair;

void pymtp_fault_in_prefill(pymtp_pair & pair, int32_t seq);
void pymtp_fault_before_decode(const pymtp_pair & pair);
void pymtp_fault_in_decode(const pymtp_pair & pair);
void pymtp_fault_in_copy(const pymtp_pair & pair);
void pymtp_fault_in_clear(const pymtp_pair & pair);

// The sequence that a step of a chain is said to be of.
llama_seq_id pymtp_fault_in_chain(const pymtp_pair & pair, int32_t seq, int32_t step);
