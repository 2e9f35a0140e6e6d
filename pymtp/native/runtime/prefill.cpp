// Processes prompts (prefill). In the fused mode the target's own graph fills the head's cache, and no hidden state
// leaves the device.
#include "pair.h"
#include "stopwatch.h"

#include <algorithm>

namespace {

// The prompt of a sequence, and how much of the prompt has been processed.
struct prompt {
    int32_t             seq;
    const llama_token * tokens;
    int32_t             n;
    size_t              first; // index of the prompt's first token among the tokens of all prompts
    int32_t             n_done = 0;
    int32_t             n_batch_tokens = 0; // number of the prompt's tokens in the current batch

    bool is_output(int32_t i, bool all_outputs) const { return all_outputs || i + 1 == n; }
};

// Sets how many tokens of each prompt the next batch of at most `limit` tokens gets: equal shares for all prompts that
// have tokens left. Returns false when no prompt has tokens left.
bool share_batch(std::vector<prompt> & prompts, int32_t limit) {
    const int32_t n_active = std::count_if(prompts.begin(), prompts.end(),
            [](const prompt & p) { return p.n_done < p.n; });
    int32_t left = limit;
    for (prompt & p : prompts) {
        p.n_batch_tokens = std::min({std::max(1, limit / std::max(1, n_active)), p.n - p.n_done, left});
        left  -= p.n_batch_tokens;
    }
    return n_active > 0;
}

} // namespace

const float * pymtp_pair::prefill(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all) {
    ctxs.check_seqs(n_seqs, seqs);
    std::vector<prompt> prompts;
    size_t n_total = 0;
    for (int32_t k = 0; k < n_seqs; n_total += lengths[k], ++k) {
        if (lengths[k] < 1) {
            throw pymtp_failure(PYMTP_INVALID, "a prompt needs at least one token");
        }
        ctxs.check_room(sequences[seqs[k]], lengths[k]);
        ctxs.check_tokens(tokens + n_total, lengths[k]);
        prompts.push_back({seqs[k], tokens + n_total, lengths[k], n_total});
    }
    ctxs.begin_prefill();
    for (const prompt & p : prompts) {
        head_sync.begin_prefill(p.seq);
    }

    // When embeddings are on, llama.cpp makes every token an output.
    const bool    all_outputs = all || ctxs.embeds_prompts();
    const int32_t limit       = all_outputs ? std::min(ctxs.n_batch, ctxs.n_outputs) : ctxs.n_batch;
    const int32_t n_vocab     = ctxs.n_vocab;
    const int32_t n_embd      = ctxs.options.embeddings ? ctxs.n_embd : 0;
    for (pymtp_sequence & s : sequences) {
        s.return_logits();
    }
    for (const prompt & p : prompts) {
        sequences[p.seq].forget_logits();
    }
    logits.resize((size_t) n_vocab * (all ? n_total : n_seqs));
    prompt_embeddings.resize((size_t) n_embd * n_total);

    llama_context * target = ctxs.target.get();
    while (share_batch(prompts, limit)) {
        ctxs.batch.clear();
        for (const prompt & p : prompts) {
            for (int32_t i = p.n_done; i < p.n_done + p.n_batch_tokens; ++i) {
                ctxs.batch.add(p.tokens[i], sequences[p.seq].n_past() + i - p.n_done, p.seq,
                        p.is_output(i, all_outputs || ctxs.fault == PYMTP_FAULT_MORE_OUTPUTS));
            }
        }
        {
            pymtp_stopwatch watch(ctxs.counters.prefill_seconds);
            ctxs.decode(target);
            llama_synchronize(target);
        }
        int32_t offset = 0; // index in the batch of the current prompt's first token
        for (size_t k = 0; k < prompts.size(); ++k) {
            prompt & p = prompts[k];
            if (p.n_batch_tokens == 0) {
                continue;
            }
            const llama_token * added = p.tokens + p.n_done;
            sequences[p.seq].append(added, p.n_batch_tokens);
            draft_rows.observe(added, p.n_batch_tokens);
            for (int32_t i = 0; i < p.n_batch_tokens; ++i) {
                if (p.is_output(p.n_done + i, all)) {
                    const float * row = llama_get_logits_ith(target, offset + i);
                    std::copy(row, row + n_vocab, logits.begin() + n_vocab * (all ? p.first + p.n_done + i : k));
                }
                if (n_embd > 0) {
                    const float * row = llama_get_embeddings_ith(target, offset + i);
                    std::copy(row, row + n_embd, prompt_embeddings.begin() + n_embd * (p.first + p.n_done + i));
                }
            }
            head_sync.end_prefill(p.seq, added, p.n_batch_tokens, offset);
            offset += p.n_batch_tokens;
            p.n_done += p.n_batch_tokens;
        }
    }
    for (size_t k = 0; k < prompts.size(); ++k) {
        sequences[prompts[k].seq].borrow_logits(
            logits.data() + n_vocab * (all ? prompts[k].first + prompts[k].n - 1 : k));
    }
    return logits.data();
}
