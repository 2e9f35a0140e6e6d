#include "compare/pymtp_compare.h"

#include "pair_call.h"
#include "pymtp_context.h"

#include <cstring>

int pymtp_pair_draft_step(pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits) {
    *logits = nullptr;
    return pymtp_pair_call(pair, seq, [&] {
        const int status = pair->host_hidden ? pair->host_hidden->draft_step(seq, token)
                : pair->check_draft(pair->sequences[seq], token, 1);
        *logits = status ? nullptr : llama_get_logits_ith(pair->draft.get(), -1);
        return status;
    });
}

void pymtp_pair_inject_fault(pymtp_pair * pair, enum pymtp_fault fault) {
    pair->fault = fault;
}

int pymtp_pair_force_device_ops(pymtp_pair * pair, bool on) {
    return pymtp_pair_call(pair, nullptr, 0, [&] {
        pymtp_force_device_ops(pair->target.get(), on);
        return (int) PYMTP_OK;
    });
}

const char * pymtp_pair_trace(pymtp_pair * pair) {
    if (!pair->trace) {
        return "";
    }
    pair->trace->taken.swap(pair->trace->nodes);
    pair->trace->nodes.clear();
    return pair->trace->taken.c_str();
}

int pymtp_pair_time_ops(pymtp_pair * pair, bool on) {
    return pymtp_pair_call(pair, nullptr, 0, [&] {
        pair->op_times = on ? std::make_unique<pymtp::op_times>() : nullptr;
        return (int) PYMTP_OK;
    });
}

int32_t pymtp_pair_op_times(pymtp_pair * pair, pymtp_op_time * times, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        int32_t n = 0;
        for (const auto & [key, sum] : pair->op_times ? pair->op_times->take() : pymtp::op_times::sums()) {
            if (n == n_max) {
                break;
            }
            const auto [op, type] = key;
            pymtp_op_time & time = times[n++];
            time = {{}, {}, sum.nodes, sum.seconds, sum.waiting, sum.bytes};
            std::strncpy(time.op, op, sizeof(time.op) - 1);
            std::strncpy(time.weights, type == GGML_TYPE_COUNT ? "" : ggml_type_name(type), sizeof(time.weights) - 1);
        }
        return n;
    });
}

int pymtp_pair_head_state(pymtp_pair * pair, int32_t seq, uint8_t * data, size_t size, size_t * needed) {
    *needed = 0;
    return pymtp_pair_call(pair, seq, [&]() -> int {
        if (!pair->draft) {
            return PYMTP_OK;
        }
        if (!pair->host_hidden->holds(seq)) {
            if (int status = pair->flush_pending_hidden(1, &seq)) {
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
