#include "compare/pymtp_compare.h"

#include "pair_call.h"

int pymtp_pair_draft(pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits) {
    *logits = nullptr;
    return pymtp_pair_call(pair, seq, [&] {
        const int status = pair->host ? pair->host->draft_step(seq, token) : pair->check_draft(pair->sequences[seq], token, 1);
        *logits = status ? nullptr : llama_get_logits_ith(pair->draft.get(), -1);
        return status;
    });
}

void pymtp_pair_break(pymtp_pair * pair, enum pymtp_fault fault) {
    pair->fault = fault;
}

const char * pymtp_pair_trace(pymtp_pair * pair) {
    if (!pair->trace) {
        return "";
    }
    pair->trace->taken.swap(pair->trace->nodes);
    pair->trace->nodes.clear();
    return pair->trace->taken.c_str();
}

int pymtp_pair_head_state(pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size, size_t * needed) {
    *needed = 0;
    return pymtp_pair_call(pair, seq, [&]() -> int {
        if (!pair->draft) {
            return PYMTP_OK;
        }
        if (!pair->host->holds(seq)) {
            if (int status = pair->take_kept(seq)) {
                return status;
            }
        }
        llama_synchronize(pair->target.get());
        llama_synchronize(pair->draft.get());
        *needed = llama_state_seq_get_size(pair->draft.get(), seq);
        if (size >= *needed) {
            llama_state_seq_get_data(pair->draft.get(), data, size, seq);
        }
        return PYMTP_OK;
    });
}
