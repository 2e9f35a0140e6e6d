// What a pair takes of each device's memory: in use, or planned before anything is loaded.
#include "border.h"
#include "pair.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-memory-hybrid.h"

#include <algorithm>
#include <map>

namespace {

using bytes_by_type = std::map<ggml_backend_buffer_type_t, size_t>;

class device_sums {
public:
    void add(int64_t pymtp_memory::* part, const bytes_by_type & bytes) {
        for (const auto & [type, size] : bytes) {
            of(type).*part += size;
        }
    }

    int32_t write(pymtp_memory * memory, int32_t n_max) const {
        int32_t n = 0;
        for (const auto & [device, sum] : devices) {
            if (n < n_max) {
                memory[n++] = sum;
            }
        }
        return n;
    }

private:
    std::map<ggml_backend_dev_t, pymtp_memory> devices;

    pymtp_memory & of(ggml_backend_buffer_type_t type) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
        // what has no device of its own, or is memory of the host that a device can reach
        if (!device || ggml_backend_buft_is_host(type)) {
            device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        }
        pymtp_memory & sum = devices[device];
        snprintf(sum.device, sizeof(sum.device), "%s", ggml_backend_dev_name(device));
        sum.host = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        return sum;
    }
};

bytes_by_type part_of(const llama_context * ctx, size_t llama_memory_breakdown_data::* part) {
    bytes_by_type bytes;
    for (const auto & [type, data] : llama_get_memory_breakdown(ctx)) {
        bytes[type] += data.*part;
    }
    return bytes;
}

device_sums sums_of(const pymtp_pair & pair) {
    device_sums sums;
    sums.add(&pymtp_memory::weights, part_of(pair.target.get(), &llama_memory_breakdown_data::model));
    sums.add(&pymtp_memory::compute, part_of(pair.target.get(), &llama_memory_breakdown_data::compute));
    bytes_by_type rest = part_of(pair.target.get(), &llama_memory_breakdown_data::context);
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(llama_get_memory(pair.target.get()))) {
        const bytes_by_type kv     = hybrid->get_mem_attn()->memory_breakdown();
        const bytes_by_type states = hybrid->get_mem_recr()->memory_breakdown();
        for (const auto * known : {&kv, &states}) {
            for (const auto & [type, size] : *known) {
                rest[type] -= size;
            }
        }
        sums.add(&pymtp_memory::kv,     kv);
        sums.add(&pymtp_memory::states, states);
    }
    sums.add(&pymtp_memory::kept_rows, rest);
    if (pair.draft) {
        sums.add(&pymtp_memory::head_kv,      part_of(pair.draft.get(), &llama_memory_breakdown_data::context));
        sums.add(&pymtp_memory::head_compute, part_of(pair.draft.get(), &llama_memory_breakdown_data::compute));
    }
    return sums;
}

// Of the compute buffer of a graph for n tokens of one sequence, over a full cache.
bytes_by_type graph_bytes(llama_context * ctx, int32_t n) {
    ggml_backend_sched_t sched = ctx->get_sched();
    std::vector<size_t> sizes(ggml_backend_sched_get_n_backends(sched));
    const auto memory = ctx->get_memory()->init_full();
    ctx->graph_reserve(n, 1, n, memory.get(), /*split_only =*/ true, sizes.data());
    bytes_by_type bytes;
    for (size_t i = 0; i < sizes.size(); ++i) {
        bytes[ggml_backend_sched_get_buffer_type(sched, ggml_backend_sched_get_backend(sched, i))] += sizes[i];
    }
    return bytes;
}

// Draws from rows: those from candidates take a little less.
llama_draw_params planned_sample() {
    llama_draw_params params;
    params.kind     = LLAMA_DRAW_ROW;
    params.callback = [](void *, const float *, const llama_token *, int32_t) -> llama_token { return 0; };
    return params;
}

// The graphs of rounds, which are kept, one for each number of rows: as pymtp_pair::verify and draft_chain set them up.
void add_rounds(pymtp_pair & pair, device_sums & sums) {
    llama_set_draw(pair.target.get(), planned_sample());
    for (int32_t n = 1; n <= 1 + pair.options.n_draft; ++n) {
        if (pair.fuses()) {
            pair.begin_prefill();
            llama_set_rs_snapshots(pair.target.get(), n > 1);
            llama_set_nextn_sync(pair.target.get(), pair.draft.get(), n == 1);
        } else {
            pair.begin_round();
        }
        sums.add(&pymtp_memory::compute, graph_bytes(pair.target.get(), n));
    }
    if (pair.fuses()) {
        llama_set_draw(pair.draft.get(), planned_sample());
        llama_set_nextn_kept(pair.draft.get(), pair.target.get());
        for (int32_t n = 1; n <= pair.options.n_draft; ++n) {
            sums.add(&pymtp_memory::head_compute, graph_bytes(pair.draft.get(), n));
        }
    }
}

} // namespace

// Compute buffers for what the contexts were told since they were made.
void pymtp_pair::reserve() {
    target->sched_reserve();
    if (draft) {
        draft->sched_reserve();
    }
}

int32_t pymtp_pair_memory(const pymtp_pair * pair, pymtp_memory * memory, int32_t n_max) {
    return sums_of(*pair).write(memory, n_max);
}

int32_t pymtp_plan_memory(
        const char * path, int32_t n_gpu_layers, bool mtp, llama_context_params params, const pymtp_pair_options * options,
        pymtp_memory * memory, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        const std::unique_ptr<pymtp_model> model(pymtp_model_plan(path, n_gpu_layers, mtp));
        const auto pair = model ? pymtp_make_pair(model.get(), params, *options) : nullptr;
        if (!pair) {
            return -1;
        }
        device_sums sums = sums_of(*pair);
        add_rounds(*pair, sums);
        return sums.write(memory, n_max);
    });
}
