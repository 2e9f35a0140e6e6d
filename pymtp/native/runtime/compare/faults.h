// Injects the faults that tests ask for, see pymtp_fault. Each function does nothing unless a fault of its kind is set.
#pragma once

#include "llama.h"

#include <cstdint>

struct pymtp_contexts;

void pymtp_fault_in_prefill(pymtp_contexts & contexts, int32_t seq);
void pymtp_fault_before_decode(const pymtp_contexts & contexts);
void pymtp_fault_in_decode(const pymtp_contexts & contexts);
void pymtp_fault_in_copy(const pymtp_contexts & contexts);
void pymtp_fault_in_clear(const pymtp_contexts & contexts);

// Returns the sequence that a draft step of `seq` is assigned to: `seq`, or a wrong one with PYMTP_FAULT_MIXED_CHAIN.
llama_seq_id pymtp_fault_chain_sequence(const pymtp_contexts & contexts, int32_t seq, int32_t step);
