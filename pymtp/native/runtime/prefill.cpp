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

    bool is_image(int32_t i) const { return tokens[i] < 0; }
    // Returns how many of the next tokens are of the same kind: of text, or of images.
    int32_t n_alike() const {
        const llama_token * next = tokens + n_done;
        return std::find_if(next, tokens + n, [&](llama_token t) { return (t < 0) != (*next < 0); }) - next;
    }
};

// Sets how many tokens of each prompt the next batch of at most `limit` tokens gets: equal shares for all prompts that
// have tokens left. A batch is of text or of images, as the first of these prompts goes on; the other prompts wait.
// Returns false when no prompt has tokens left.
bool share_batch(std::vector<prompt> & prompts, int32_t limit) {
    const auto is_active = [](const prompt & p) { return p.n_done < p.n; };
    const auto first     = std::find_if(prompts.begin(), prompts.end(), is_active);
    if (first == prompts.end()) {
        return false;
    }
    const bool images  = first->is_image(first->n_done);
    const auto takes   = [&](const prompt & p) { return is_active(p) && p.is_image(p.n_done) == images; };
    const int32_t n    = std::count_if(prompts.begin(), prompts.end(), takes);
    int32_t       left = limit;
    for (prompt & p : prompts) {
        p.n_batch_tokens = takes(p) ? std::min({std::max(1, limit / n), p.n_alike(), left}) : 0;
        left -= p.n_batch_tokens;
    }
    return true;
}

} // namespace

const float * pymtp_pair::prefill(
        int32_t n_seqs, const int32_t * seqs, const llama_token * tokens, const int32_t * lengths,
        const pymtp_rows_of_images & images, bool all) {
    ctxs.check_seqs(n_seqs, seqs);
    std::vector<prompt> prompts;
    size_t n_total = 0;
    for (int32_t k = 0; k < n_seqs; n_total += lengths[k], ++k) {
        if (lengths[k] < 1) {
            throw pymtp_failure(PYMTP_INVALID, "a prompt needs at least one token");
        }
        const pymtp_sequence & s = sequences[seqs[k]];
        ctxs.check_room(s, lengths[k]);
        ctxs.check_prompt(s, tokens + n_total, lengths[k]);
        images.check(tokens + n_total, lengths[k]);
        prompts.push_back({seqs[k], tokens + n_total, lengths[k], n_total});
    }
    ctxs.begin_prefill();
    for (const prompt & p : prompts) {
        head_sync.begin_prefill(p.seq);
        sequences[p.seq].begin_prompt(ctxs.images, p.tokens, p.n);
    }

    // When embeddings are on, llama.cpp makes every token an output.
    const bool    all_outputs = all || ctxs.embeds_prompts();
    const int32_t limit       = all_outputs ? std::min(ctxs.n_batch, ctxs.n_outputs) : ctxs.n_batch;
    const int32_t n_vocab     = ctxs.n_vocab;
    const int32_t n_embd      = ctxs.options.embeddings ? ctxs.n_embd : 0;
    const int32_t n_embd_inp  = llama_model_n_embd_inp(ctxs.model.get());
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
                const int32_t pos    = sequences[p.seq].n_past() + i - p.n_done;
                const bool    output = p.is_output(i, all_outputs || ctxs.fault == PYMTP_FAULT_MORE_OUTPUTS);
                if (p.is_image(i)) {
                    const float * row = images.of(p.tokens[i]) + (size_t) sequences[p.seq].image_row(pos)*n_embd_inp;
                    ctxs.batch.add_image_row(row, n_embd_inp, pos, p.seq, output);
                } else {
                    ctxs.batch.add(p.tokens[i], pos, p.seq, output);
                }
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
