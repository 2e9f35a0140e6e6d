// Mistakes made on purpose, see pymtp_fault. Each of these does nothing unless its fault was asked for.
#pragma once

#include <cstdint>

struct pymtp_pair;

void pymtp_fault_in_prefill(pymtp_pair & pair, int32_t seq);
void pymtp_fault_in_decode(const pymtp_pair & pair);
void pymtp_fault_in_clear(const pymtp_pair & pair);
