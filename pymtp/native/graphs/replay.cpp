// Allocates our memory of the recurrent layers, and keeps track of the tokens of each sequence in it.
#include "replay.h"

#include "extension.h"

#include "llama-batch.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <string>

pymtp_replay::pymtp_replay(const llama_model & model, llama_memory_recurrent & states, uint32_t n_seq_max,
        uint32_t max_rewind) :
    max_rewind(max_rewind), model(model), states(states), n_seq_max(n_seq_max),
            n_conv(model.hparams.ssm_d_conv - 1 + max_rewind), sequences(n_seq_max), layers(states.s_l.size()) {
    const auto & hparams = model.hparams;

    const int64_t n_channels = hparams.ssm_d_inner + 2*hparams.ssm_n_group*hparams.ssm_d_state;
    // qwen3next repeats k before the delta net, so that each head of v has its own k
    const int64_t n_k = model.arch == LLM_ARCH_QWEN3NEXT ? hparams.ssm_d_inner
            : hparams.ssm_n_group*hparams.ssm_d_state;
    const int64_t n_inputs = n_k + hparams.ssm_d_inner + 2*hparams.ssm_dt_rank;

    for (size_t il = 0; il < layers.size(); ++il) {
        if (!states.s_l[il]) {
            continue;
        }
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(states.s_l[il]->buffer);
        pymtp_own_tensors & group = tensors.try_emplace(buft, 2*layers.size(), hparams.no_alloc).first->second;

        layer & l = layers[il];
        l.on_host = ggml_backend_buft_is_host(buft);
        l.conv    = group.add(GGML_TYPE_F32, "pymtp_conv_inputs_l" + std::to_string(il), n_channels, n_conv*n_seq_max);
        if (max_rewind > 0) {
            l.net = group.add(GGML_TYPE_F32, "pymtp_delta_net_inputs_l" + std::to_string(il), n_inputs,
                    max_pending()*n_seq_max + 1);
        }
    }
    for (auto & [buft, group] : tensors) {
        ggml_backend_buffer_clear(group.allocate(buft, "the last inputs of the recurrent layers"), 0);
    }
}

bool pymtp_replay::on_host() const {
    return std::all_of(layers.begin(), layers.end(), [](const layer & l) { return !l.conv || l.on_host; });
}

std::vector<pymtp_replay::part> pymtp_replay::all_parts(llama_seq_id seq) const {
    std::vector<part> all;
    const auto add = [&](ggml_tensor * t, size_t first, size_t n) {
        if (t) {
            all.push_back({t, first*t->nb[1], n*t->nb[1]});
        }
    };
    for (size_t il = 0; il < layers.size(); ++il) {
        add(states.s_l[il],  states.cells[seq].tail, 1);
        add(layers[il].conv, seq*n_conv,             n_conv);
        add(layers[il].net,  seq*max_pending(),     max_pending());
    }
    return all;
}

std::vector<pymtp_replay::part> pymtp_replay::resume_parts(llama_seq_id seq, llama_pos n, int32_t n_pending) const {
    std::vector<part> all;
    const auto add = [&](ggml_tensor * t, size_t row) { all.push_back({ t, row*t->nb[1], t->nb[1] }); };
    for (size_t il = 0; il < layers.size(); ++il) {
        if (!states.s_l[il]) {
            continue;
        }
        add(states.s_l[il], seq); // the state of a sequence is in the cell that has the sequence's number
        for (llama_pos pos = n - (n_conv - max_rewind); pos < n; ++pos) {
            add(layers[il].conv, conv_row(seq, pos));
        }
        for (llama_pos pos = n - n_pending; pos < n; ++pos) {
            add(layers[il].net, net_row(seq, pos));
        }
    }
    return all;
}

void pymtp_replay::clear(llama_seq_id seq) {
    for (const part & p : all_parts(seq)) {
        ggml_backend_tensor_memset(p.tensor, 0, p.offset, p.size);
    }
    sequences[seq] = {};
}

bool pymtp_replay::begin_ubatch(const llama_ubatch & ubatch) {
    bool any = false;
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        const uint32_t     first = s*ubatch.n_seq_tokens;
        const llama_seq_id seq   = ubatch.seq_id[first][0];
        const llama_pos    pos   = ubatch.pos[first];

        sequence & entry = sequences[seq];
        if (pos < entry.n_state || pos > entry.n_state + max_pending()) {
            throw std::runtime_error("sequence " + std::to_string(seq) + " has a state at " +
                    std::to_string(entry.n_state) + " tokens and cannot go on at " + std::to_string(pos));
        }
        entry.n_pending = pos - entry.n_state;
        entry.n_state   = pos + (defers_state(ubatch.n_seq_tokens) ? 0 : (llama_pos) ubatch.n_seq_tokens);
        any |= entry.n_pending > 0;
    }
    return any;
}

bool pymtp_replay::rewind(llama_seq_id seq, llama_pos n_keep) {
    auto & cell = states.cells[states.cells[seq].tail];
    if (n_keep <= sequences[seq].n_state || n_keep > cell.pos + 1) {
        return false;
    }
    cell.pos = n_keep - 1;
    return true;
}

void pymtp_replay::add_bytes(pymtp_bytes_by_buffer & sum) const {
    for (const auto & [buft, group] : tensors) {
        group.add_bytes(sum);
    }
}

// ── of a context ──

void pymtp_make_replay(llama_context * ctx, uint32_t max_rewind) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (ext.states) {
        ext.replay = std::make_unique<pymtp_replay>(ctx->get_model(), *ext.states, ctx->n_seq_max(), max_rewind);
        ext.settings().replay = ext.replay.get();
        ext.need_reserve();
    }
}

void pymtp_force_device_ops(llama_context * ctx, bool value) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    ext.settings().device_ops = value;
    ext.need_reserve(); // other operations need other compute buffers
}

bool pymtp_rewind(llama_context * ctx, llama_seq_id seq, llama_pos n_keep) {
    pymtp_extension & ext = pymtp_extension::get(ctx);
    if (ext.replay && n_keep <= ctx->get_memory()->seq_pos_max(seq) && !ext.replay->rewind(seq, n_keep)) {
        return false;
    }
    return ext.kv->seq_rm(seq, n_keep, -1);
}

void pymtp_assign_state_cell(llama_memory_recurrent & states, llama_seq_id seq) {
    auto & cell = states.cells[seq];
    // the sequence has a cell (llama.cpp stores its number in cells[seq].tail), or the cell is taken
    if (cell.tail >= 0 || !cell.is_empty()) {
        return;
    }
    cell.tail = seq;
    cell.seq_id.insert(seq);
    states.used++;
}
