// Checks a batch before llama_decode, and prepares the context for the batch and for each of its ubatches.
#include "extension.h"

#include "llama-kv-cache.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace {

struct cancelled {};

template <typename F> class scope_exit {
public:
    explicit scope_exit(F call) : call(std::move(call)) {}
    ~scope_exit() { call(); }

private:
    F call;
};

uint32_t count_outputs(const llama_batch & batch, bool all) {
    if (all) {
        return batch.n_tokens;
    }
    return batch.logits ? std::count_if(batch.logits, batch.logits + batch.n_tokens,
            [](int8_t flag) { return flag != 0; }) : 1;
}

// Returns the number of tokens that the first sequence has in the batch.
int32_t first_sequence_length(const llama_batch & batch) {
    int32_t n = 1;
    while (n < batch.n_tokens && batch.seq_id[n][0] == batch.seq_id[0][0]) {
        ++n;
    }
    return n;
}

// Returns whether the batch holds consecutive sequences with equally many tokens. llama.cpp processes such a batch in
// one ubatch.
bool has_equal_sequences(const llama_batch & batch) {
    const auto    seq     = [&](int32_t i) { return batch.seq_id[i][0]; };
    const int32_t n_first = first_sequence_length(batch);
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        if (batch.n_seq_id[i] != 1 || seq(i) != seq(0) + i/n_first) {
            return false;
        }
    }
    return batch.n_tokens % n_first == 0;
}

void refuse(const std::string & why) {
    throw std::runtime_error(why);
}

// Throws an exception for batches that would fail an assertion in llama.cpp.
void check(const llama_batch & batch, uint32_t n_outputs, uint32_t slot, const llama_cparams & cparams) {
    const uint32_t n_tokens = batch.n_tokens;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        if (batch.seq_id[i][0] < 0 || (uint32_t) batch.seq_id[i][0] >= cparams.n_seq_max) {
            refuse("there is no sequence " + std::to_string(batch.seq_id[i][0]));
        }
    }
    if (n_tokens > cparams.n_batch) {
        refuse("a batch of " + std::to_string(n_tokens) + " tokens is more than n_batch = " +
                std::to_string(cparams.n_batch));
    }
    if (n_outputs > cparams.n_outputs_max) {
        refuse("a batch with " + std::to_string(n_outputs) + " outputs, but room for " +
                std::to_string(cparams.n_outputs_max));
    }
    if (!cparams.pymtp.take_hidden) {
        return;
    }
    if (n_tokens > cparams.n_ubatch || n_outputs > 0) {
        refuse("tokens that go with kept hidden states take one ubatch without outputs");
    }
    if (cparams.pymtp.sample != PYMTP_SAMPLE_NONE && (slot == 0 || !has_equal_sequences(batch))) {
        refuse("chains of drafts are of sequences side by side, of equal length, and in a slot of their own");
    }
}

} // namespace

void pymtp_reserve(llama_context * ctx) {
    pymtp_extension::get(ctx).reserve();
}

int pymtp_decode(llama_context * ctx, const llama_batch & batch, uint32_t slot) {
    return pymtp_extension::get(ctx).decode(batch, slot);
}

void pymtp_extension::reserve() {
    if (!ctx.sched_need_reserve) {
        return;
    }
    slots.clear();
    if (settings().pending_hidden) {
        head_mctx = draft->kv->init_full();
    }
    settings().has_replay = true;
    ctx.sched_reserve();
}

int pymtp_extension::decode(const llama_batch & batch, uint32_t slot) {
    const uint32_t n_outputs = count_outputs(batch, ctx.cparams.embeddings);
    check(batch, n_outputs, slot, ctx.cparams);

    // reserve() and memory_update() may compute graphs of llama.cpp, so they must run before the slot's buffers are
    // swapped in.
    reserve();
    ctx.memory_update(false);

    if (slot != last_slot) {
        ctx.synchronize();
        last_slot = slot;
    }
    if (slot > 0) {
        slots.resize(std::max<size_t>(slots.size(), slot));
        prepare_slot(slots[slot - 1], batch.n_tokens, first_sequence_length(batch), n_outputs > 0);
        swap_slot(slots[slot - 1]);
    }
    const scope_exit restore_slot([&] {
        if (slot > 0) {
            swap_slot(slots[slot - 1]);
        }
    });

    for (int32_t i = 0; states && i < batch.n_tokens; ++i) {
        pymtp_assign_state_cell(*states, batch.seq_id[i][0]);
    }

    int status = 0;
    try {
        status = llama_decode(&ctx, batch);
    } catch (const cancelled &) {
        status = 2;
    }
    if (status != 0) {
        return status;
    }

    const size_t row = ctx.model.hparams.n_embd_out()*sizeof(float);
    if (ctx.logits.data && n_outputs > 0) {
        bytes.logits += n_outputs*ctx.model.vocab.n_tokens()*sizeof(float);
    }
    if (ctx.embd.data) {
        bytes.embeddings += n_outputs*row;
    }
    if (ctx.embd_nextn.data && ctx.gf_res_prev_active->t_h_nextn) {
        bytes.hidden += (ctx.cparams.embeddings_nextn_masked ? n_outputs : batch.n_tokens)*row;
    }
    sampler.fetch(ctx.gf_res_prev_active, ctx.sched.get());

    return 0;
}

llama_kv_cache_context & pymtp_extension::cells_of(llama_memory_context_i & mctx) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_context *>(&mctx)) {
        return const_cast<llama_kv_cache_context &>(*hybrid->get_attn());
    }
    return static_cast<llama_kv_cache_context &>(mctx);
}

bool pymtp_extension::apply(const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    // Checked here as well, because only the CPU backend calls the abort callback between nodes.
    if (abort_requested()) {
        throw cancelled();
    }
    if (settings().pending_hidden) {
        find_head_cells(ubatch);
    }

    if (!mctx.apply()) {
        return false;
    }
    if (replay) {
        for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
            if (ubatch.pos[s*ubatch.n_seq_tokens] == 0) {
                ctx.synchronize();
                replay->clear(ubatch.seq_id[s*ubatch.n_seq_tokens][0]);
            }
        }
        // The host's operation can replay zero tokens at no cost, so on the host the graph always replays. Other
        // devices replay only if there are tokens to replay, or in a verification.
        const bool pending = replay->begin_ubatch(ubatch);
        settings().has_replay = pending || replay->defers_state(ubatch.n_seq_tokens) ||
                (replay->on_host() && !settings().device_ops);
    }

    // llama.cpp builds a graph for the number of cells in use, rounded up to a multiple of 256. On the CPU, building a
    // graph takes as long as a token of a small model, while additional cells cost nothing, because flash attention of
    // few tokens skips masked cells. So the number is rounded up to a power of two: the graph is rebuilt only when the
    // number of tokens has doubled.
    const uint32_t n_stream_tokens = kv->get_n_stream() == 1 ? ubatch.n_tokens : ubatch.n_seq_tokens;
    if (ctx.cparams.flash_attn && n_stream_tokens <= 16 && kv_on_host) {
        llama_kv_cache_context & cells = cells_of(mctx);

        int32_t n_kv = 1024;
        while (n_kv < cells.n_kv) {
            n_kv *= 2;
        }
        cells.n_kv = std::min(n_kv, (int32_t) kv->get_size());
    }
    return true;
}
