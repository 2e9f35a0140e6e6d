#include "compare/pymtp_compare.h"

#include "pair.h"
#include "pymtp_context.h"

#include <cstring>

int pymtp_pair_draft_step(pymtp_pair * pair, int32_t seq, llama_token token, const float ** logits) {
    *logits = nullptr;
    return pair->call(&seq, 1, [&] {
        pymtp_contexts & contexts = pair->contexts();
        if (!contexts.draft) {
            contexts.check_draft(pair->sequence(seq), token, 1); // refuses
        }
        contexts.check_seq(seq);
        pair->head().host()->draft_step(seq, token);
        *logits = llama_get_logits_ith(contexts.draft.get(), -1);
    });
}

void pymtp_pair_inject_fault(pymtp_pair * pair, enum pymtp_fault fault) {
    pair->contexts().fault = fault;
}

int pymtp_pair_force_device_ops(pymtp_pair * pair, bool on) {
    return pair->call(nullptr, 0, [&] { pymtp_force_device_ops(pair->contexts().target.get(), on); });
}

int pymtp_pair_rope_position(pymtp_pair * pair, int32_t seq, int32_t pos, int32_t * positions) {
    return pair->call(nullptr, 0, [&] {
        const pymtp_rope_position at = pymtp_rope_position_of(pair->sequence(seq).images(), pos);
        positions[0] = at.t;
        positions[1] = at.y;
        positions[2] = at.x;
    });
}

const char * pymtp_pair_trace(pymtp_pair * pair) {
    pymtp_trace * trace = pair->contexts().trace.get();
    if (!trace) {
        return "";
    }
    trace->taken.swap(trace->nodes);
    trace->nodes.clear();
    return trace->taken.c_str();
}

int pymtp_pair_time_ops(pymtp_pair * pair, bool on) {
    return pair->call(nullptr, 0, [&] {
        pair->contexts().op_times = on ? std::make_unique<pymtp::op_times>() : nullptr;
    });
}

int32_t pymtp_pair_op_times(pymtp_pair * pair, pymtp_op_time * times, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        int32_t n = 0;
        pymtp::op_times * op_times = pair->contexts().op_times.get();
        for (const auto & [key, sum] : op_times ? op_times->take() : pymtp::op_times::sums()) {
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
    return pair->call(&seq, 1, [&] {
        pair->contexts().check_seq(seq);
        llama_context * draft = pair->contexts().draft.get();
        if (!draft) {
            return;
        }
        if (!pair->head().host()->holds(seq)) {
            pair->head().flush(1, &seq);
        }
        llama_synchronize(pair->contexts().target.get());
        llama_synchronize(draft);
        *needed = llama_state_seq_get_size(draft, seq);
        if (size >= *needed) {
            llama_state_seq_get_data(draft, data, size, seq);
        }
    });
}
