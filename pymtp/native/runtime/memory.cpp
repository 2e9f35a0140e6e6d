// Sums up the memory of a pair for each device: memory in use, or memory planned before anything is loaded.
#include "model.h"
#include "pair.h"
#include "text_choice.h"

#include "llama-kv-cells.h"
#include "llama-model.h"
#include "pymtp_context.h"

#include <algorithm>
#include <map>

// llama_kv_cells stores for each cell a position, a shift of the position, extra positions, and a set of sequences.
const int64_t pymtp_cell_metadata_bytes = 2*sizeof(llama_pos) + sizeof(llama_kv_cell_ext) +
        sizeof(llama_kv_cells::seq_set_t);

namespace {

class device_sums {
public:
    void add(int64_t pymtp_memory::* part, const pymtp_bytes_by_buffer & bytes) {
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
        // Buffers without a device, and host memory that a GPU can access, count as memory of the CPU.
        if (!device || ggml_backend_buft_is_host(type)) {
            device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        }
        pymtp_memory & sum = devices[device];
        snprintf(sum.device, sizeof(sum.device), "%s", ggml_backend_dev_name(device));
        sum.host = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        return sum;
    }
};

device_sums memory_by_device(const pymtp_contexts & contexts) {
    device_sums sums;
    const pymtp_memory_parts target = pymtp_get_memory(contexts.target.get());
    sums.add(&pymtp_memory::weights,   target.weights);
    sums.add(&pymtp_memory::kv,        target.kv);
    sums.add(&pymtp_memory::states,    target.states);
    sums.add(&pymtp_memory::kept_rows, target.pending_hidden);
    sums.add(&pymtp_memory::compute,   target.compute);
    if (contexts.draft) {
        const pymtp_memory_parts draft = pymtp_get_memory(contexts.draft.get());
        sums.add(&pymtp_memory::head_kv,      draft.kv);
        sums.add(&pymtp_memory::head_compute, draft.compute);
        sums.add(&pymtp_memory::draft_vocab,  draft.reduced_output);
    }
    return sums;
}

// Returns the bytes of a row of n elements. n need not be a whole number of the type's blocks here; llama.cpp refuses
// such a row later.
int64_t row_bytes(ggml_type type, int64_t n) { return n*ggml_type_size(type)/ggml_blck_size(type); }

// Returns the bytes of host memory that K and V, or the recurrent states, of one block of the model take.
int64_t host_bytes(const llama_model & model, uint32_t block, const llama_context_params & params, int32_t n_seqs) {
    const llama_hparams & hparams = model.hparams;
    if (params.offload_kqv && ggml_backend_dev_type(model.dev_layer(block)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
        return 0;
    }
    if (hparams.is_recr(block)) {
        return int64_t(4)*n_seqs*(hparams.n_embd_r() + hparams.n_embd_s());
    }
    return params.n_ctx*(
        row_bytes(params.type_k, hparams.n_embd_k_gqa(block)) + row_bytes(params.type_v, hparams.n_embd_v_gqa(block)));
}

// Returns the sampling settings to plan graphs with: sampling from whole rows, which needs slightly more memory than
// sampling from candidates.
pymtp_graph_sample planned_sample() {
    pymtp_graph_sample params;
    params.kind     = PYMTP_SAMPLE_ROW;
    params.callback = [](void *, int32_t, const float *, const llama_token *, int32_t) -> llama_token { return 0; };
    return params;
}

using shapes = std::vector<pymtp_graph_slots::shape>;

// Returns the shapes of rounds to plan memory for: all shapes of one sequence with up to n_rows rows, and the largest
// shapes of several sequences that can have slots at the same time.
// most_rows: largest number of rows of one of several sequences. room: of all sequences together
shapes cached_shapes(const pymtp_contexts & contexts, int32_t n_rows, int32_t most_rows, int32_t room) {
    shapes kept = pymtp_graph_slots::largest(contexts.can_batch() ? contexts.options.n_seq_max : 1, most_rows, room);
    for (int32_t n = 1; n <= n_rows; ++n) {
        kept.push_back({1, n});
    }
    return kept;
}

// Returns the shapes of verifications, with drafts of the head and from text.
shapes verify_shapes(const pymtp_contexts & contexts) {
    const pymtp_pair_options & options = contexts.options;
    shapes kept = cached_shapes(
            contexts, 1 + options.n_draft, 1 + contexts.max_drafts(), contexts.max_verify_rows());
    for (int n : pymtp_text_depths(options.n_draft, options.n_text)) {
        if (n > options.n_draft) {
            kept.push_back({1, 1 + n});
        }
    }
    return kept;
}

// Adds the memory of the graphs of rounds, built with the same settings as in pymtp_pair::verify and draft_chains.
void add_round_graphs(pymtp_contexts & contexts, device_sums & sums) {
    pymtp_set_sample(contexts.target.get(), planned_sample());
    for (const auto & [n_seqs, n] : verify_shapes(contexts)) {
        if (contexts.is_fused()) {
            contexts.begin_prefill();
            pymtp_set_fused_sync(contexts.target.get(), contexts.draft.get(), n == 1);
        } else {
            contexts.begin_host_round();
        }
        sums.add(&pymtp_memory::compute, pymtp_planned_compute(contexts.target.get(), n_seqs, n));
    }
    if (contexts.is_fused()) {
        pymtp_set_sample(contexts.draft.get(), planned_sample());
        const pymtp_pending_hidden_scope  hidden(contexts);
        const pymtp_reduced_output_scope rows(contexts, true);
        const int32_t n_draft = contexts.options.n_draft;
        for (const auto & [n_seqs, n] : cached_shapes(contexts, n_draft, n_draft, contexts.max_head_rows)) {
            sums.add(&pymtp_memory::head_compute, pymtp_planned_compute(contexts.draft.get(), n_seqs, n));
        }
    }
}

} // namespace

int32_t pymtp_pair_memory(pymtp_pair * pair, pymtp_memory * memory, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] { return memory_by_device(pair->contexts()).write(memory, n_max); });
}

int64_t pymtp_min_host_memory(
        const pymtp_model * model, llama_context_params params, const pymtp_pair_options * options) {
    return pymtp_guarded<int64_t>(-1, [&] {
        const llama_model & shared = *model->shared;
        const bool     drafts      = options->n_draft > 0;
        const uint32_t n_blocks    = drafts ? shared.hparams.n_layer_all : shared.hparams.n_layer();
        int64_t bytes              = pymtp_cell_metadata_bytes*int64_t(params.n_ctx)*(drafts ? 2 : 1);
        for (uint32_t i = 0; i < n_blocks; ++i) {
            bytes += host_bytes(shared, i, params, options->n_seq_max);
        }
        return bytes;
    });
}

int32_t pymtp_plan_memory(
        const char * path, const pymtp_model_options * model_options, llama_context_params params,
        const pymtp_pair_options * options, pymtp_memory * memory, int32_t n_max) {
    return pymtp_guarded<int32_t>(-1, [&] {
        const std::unique_ptr<pymtp_model> model(pymtp_model_plan(path, *model_options));
        if (!model) {
            return -1;
        }
        pymtp_pair pair(*model, params, *options);
        device_sums sums = memory_by_device(pair.contexts());
        add_round_graphs(pair.contexts(), sums);
        return sums.write(memory, n_max);
    });
}
