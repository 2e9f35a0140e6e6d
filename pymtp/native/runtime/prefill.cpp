// Processes prompts (prefill). In the fused mode the target's own graph fills the head's cache, and no hidden state
// leaves the device.
#include "compare/faults.h"
#include "callbacks.h"
#include "pair.h"
#include "stopwatch.h"

#include "pymtp_context.h"

#include <algorithm>

int pymtp_pair::check_prompts(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths) const {
    if (!check_seqs(n_seqs, seqs)) {
        return PYMTP_INVALID;
    }
    for (int32_t k = 0; k < n_seqs; tokens += lengths[k], ++k) {
        if (lengths[k] < 1) {
            pymtp_set_error("a prompt needs at least one token");
            return PYMTP_INVALID;
        }
        if (int status = check_room(sequences[seqs[k]], lengths[k])) {
            return status;
        }
        if (!check_tokens(tokens, lengths[k])) {
            return PYMTP_INVALID;
        }
    }
    return PYMTP_OK;
}

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

int pymtp_pair::prefill(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths, bool all) {
    if (int status = check_prompts(n_seqs, seqs, tokens, lengths)) {
        return status;
    }
    std::vector<prompt> prompts;
    size_t n_total = 0;
    for (int32_t k = 0; k < n_seqs; n_total += lengths[k], ++k) {
        prompts.push_back({seqs[k], tokens + n_total, lengths[k], n_total});
    }
    begin_prefill();
    const bool fused = is_fused();
    for (const prompt & p : prompts) {
        if (draft) {
            discard_drafts(p.seq);
            if (int status = fused ? catch_up_head(1, &p.seq) : host_hidden->fetch_from_device(p.seq)) {
                return status;
            }
        }
    }

    // When embeddings are on, llama.cpp makes every token an output.
    const bool    all_outputs = all || options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    const int32_t limit = all_outputs ? std::min(n_batch, n_outputs) : n_batch;
    for (pymtp_sequence & s : sequences) {
        if (s.copied_logits.empty()) {
            s.first_logits = nullptr;
        }
    }
    for (const prompt & p : prompts) {
        sequences[p.seq].forget_logits();
    }
    logits.resize((size_t) n_vocab * (all ? n_total : n_seqs));
    embeddings.resize(options.embeddings ? (size_t) n_embd * n_total : 0);

    while (share_batch(prompts, limit)) {
        batch.clear();
        for (const prompt & p : prompts) {
            for (int32_t i = p.n_done; i < p.n_done + p.n_batch_tokens; ++i) {
                batch.add(p.tokens[i], sequences[p.seq].n_past + i - p.n_done, p.seq,
                        p.is_output(i, all_outputs || fault == PYMTP_FAULT_MORE_OUTPUTS));
            }
        }
        {
            pymtp_stopwatch watch(counters.prefill_seconds);
            if (int status = decode(target.get())) {
                return status;
            }
            llama_synchronize(target.get());
        }
        int32_t offset = 0; // index in the batch of the current prompt's first token
        for (size_t k = 0; k < prompts.size(); ++k) {
            prompt & p = prompts[k];
            pymtp_sequence & s = sequences[p.seq];
            if (p.n_batch_tokens == 0) {
                continue;
            }
            s.n_past  += p.n_batch_tokens;
            s.n_rewind = 0;
            s.tokens.insert(s.tokens.end(), p.tokens + p.n_done, p.tokens + p.n_done + p.n_batch_tokens);
            observe_text(p.tokens + p.n_done, p.n_batch_tokens);
            for (int32_t i = 0; i < p.n_batch_tokens; ++i) {
                if (p.is_output(p.n_done + i, all)) {
                    const float * row = llama_get_logits_ith(target.get(), offset + i);
                    std::copy(row, row + n_vocab, logits.begin() + n_vocab * (all ? p.first + p.n_done + i : k));
                }
                if (options.embeddings) {
                    const float * row = llama_get_embeddings_ith(target.get(), offset + i);
                    std::copy(row, row + n_embd, embeddings.begin() + n_embd * (p.first + p.n_done + i));
                }
            }
            if (fused) {
                s.n_head += p.n_batch_tokens;
                pymtp_fault_in_prefill(*this, p.seq);
            } else if (draft) {
                if (int status = host_hidden->take_prompt(p.seq, p.tokens + p.n_done, p.n_batch_tokens, offset)) {
                    return status;
                }
            }
            offset += p.n_batch_tokens;
            p.n_done += p.n_batch_tokens;
        }
    }
    for (size_t k = 0; k < prompts.size(); ++k) {
        sequences[prompts[k].seq].first_logits =
            logits.data() + n_vocab * (all ? prompts[k].first + prompts[k].n - 1 : k);
    }
    return PYMTP_OK;
}
