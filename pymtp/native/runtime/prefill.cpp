// Prompts. In the fused mode the target's own graph fills the head's cache, and no hidden state leaves the device.
#include "compare/faults.h"
#include "host.h"
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

// A sequence's prompt, and how much of it the target holds.
struct prompt {
    int32_t             seq;
    const llama_token * tokens;
    int32_t             n;
    size_t              first; // its first token among all prompts'
    int32_t             done = 0;
    int32_t             take = 0; // tokens of it in the batch

    bool is_output(int32_t i, bool every) const { return every || i + 1 == n; }
};

// Gives each prompt that has tokens left an equal share of the batch. False when none has.
bool share_batch(std::vector<prompt> & prompts, int32_t limit) {
    const int32_t n_active = std::count_if(prompts.begin(), prompts.end(), [](const prompt & p) { return p.done < p.n; });
    int32_t left = limit;
    for (prompt & p : prompts) {
        p.take = std::min({std::max(1, limit / std::max(1, n_active)), p.n - p.done, left});
        left  -= p.take;
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
    size_t n_all = 0;
    for (int32_t k = 0; k < n_seqs; n_all += lengths[k], ++k) {
        prompts.push_back({seqs[k], tokens + n_all, lengths[k], n_all});
    }
    begin_prefill();
    const bool fused = fuses();
    for (const prompt & p : prompts) {
        if (draft) {
            take_back_draft(p.seq);
            if (int status = fused ? settle(1, &p.seq) : host->fetch(p.seq)) {
                return status;
            }
        }
    }

    // every token is an output when embeddings are on
    const bool    every = all || options.embeddings || (draft && options.prefill == PYMTP_PREFILL_ALL_OUTPUTS);
    const int32_t limit = every ? std::min(n_batch, n_outputs) : n_batch;
    for (pymtp_sequence & s : sequences) {
        if (s.copied_logits.empty()) {
            s.first_logits = nullptr;
        }
    }
    for (const prompt & p : prompts) {
        sequences[p.seq].forget_logits();
    }
    logits.resize((size_t) n_vocab * (all ? n_all : n_seqs));
    embeddings.resize(options.embeddings ? (size_t) n_embd * n_all : 0);

    while (share_batch(prompts, limit)) {
        batch.clear();
        for (const prompt & p : prompts) {
            for (int32_t i = p.done; i < p.done + p.take; ++i) {
                batch.add(p.tokens[i], sequences[p.seq].n_past + i - p.done, p.seq, p.is_output(i, every || fault == PYMTP_FAULT_MORE_OUTPUTS));
            }
        }
        {
            pymtp_stopwatch watch(counters.prefill_seconds);
            if (int status = decode(target.get())) {
                return status;
            }
            llama_synchronize(target.get());
        }
        int32_t offset = 0; // of a prompt's tokens in the batch
        for (size_t k = 0; k < prompts.size(); ++k) {
            prompt & p = prompts[k];
            pymtp_sequence & s = sequences[p.seq];
            if (p.take == 0) {
                continue;
            }
            s.n_past  += p.take;
            s.n_rewind = 0;
            s.tokens.insert(s.tokens.end(), p.tokens + p.done, p.tokens + p.done + p.take);
            see(p.tokens + p.done, p.take);
            for (int32_t i = 0; i < p.take; ++i) {
                if (p.is_output(p.done + i, all)) {
                    const float * row = llama_get_logits_ith(target.get(), offset + i);
                    std::copy(row, row + n_vocab, logits.begin() + n_vocab * (all ? p.first + p.done + i : k));
                }
                if (options.embeddings) {
                    const float * row = llama_get_embeddings_ith(target.get(), offset + i);
                    std::copy(row, row + n_embd, embeddings.begin() + n_embd * (p.first + p.done + i));
                }
            }
            if (fused) {
                s.n_head += p.take;
                pymtp_fault_in_prefill(*this, p.seq);
            } else if (draft) {
                if (int status = host->take_prompt(p.seq, p.tokens + p.done, p.take, offset)) {
                    return status;
                }
            }
            offset += p.take;
            p.done += p.take;
        }
    }
    for (size_t k = 0; k < prompts.size(); ++k) {
        sequences[prompts[k].seq].first_logits = logits.data() + n_vocab * (all ? prompts[k].first + prompts[k].n - 1 : k);
    }
    return PYMTP_OK;
}
