#include "pymtp_text_drafts.h"

#include "api_guard.h"
#include "text_choice.h"

#include <algorithm>

pymtp_guess_rates * pymtp_guess_rates_init(void) {
    return pymtp_guarded<pymtp_guess_rates *>(nullptr, [] { return new pymtp_guess_rates; });
}

void pymtp_guess_rates_free(pymtp_guess_rates * rates) {
    delete rates;
}

pymtp_text_drafts * pymtp_text_drafts_init(pymtp_guess_rates * rates, const pymtp_text * earlier) {
    return pymtp_guarded<pymtp_text_drafts *>(nullptr, [&] { return new pymtp_text_drafts(*rates, earlier); });
}

void pymtp_text_drafts_free(pymtp_text_drafts * drafts) {
    delete drafts;
}

int32_t pymtp_text_drafts_add(pymtp_text_drafts * drafts, const llama_token * tokens, int32_t n) {
    return pymtp_guarded<int32_t>(-1, [&] {
        pymtp_require(n >= 0, "tokens are counted from zero");
        drafts->add(tokens, n);
        return 0;
    });
}

static pymtp_round_limits limits_of(const pymtp_draft_limits & round) {
    pymtp_require(round.max_text >= 0 && round.max_head >= 0 && round.room >= 1, "limits are counted from zero");
    return {round.max_text, round.max_head, round.room};
}

// Appends what each sequence generated. Sets the length of a text that fails to -1, and of the others to 0.
static void add_generated(
        int32_t n_seqs, pymtp_text_drafts * const * texts, const int32_t * n_generated, const llama_token * generated,
        int32_t * lengths) {
    for (int32_t k = 0; k < n_seqs; generated += n_generated[k++]) {
        pymtp_require(n_generated[k] >= 0, "tokens are counted from zero");
        lengths[k] = 0;
        if (texts[k] && n_generated[k] > 0) {
            lengths[k] = pymtp_text_drafts_add(texts[k], generated, n_generated[k]);
        }
    }
}

int32_t pymtp_choose_text_drafts(
        const pymtp_costs * costs, int32_t n_seqs, pymtp_text_drafts * const * texts,
        pymtp_acceptance * const * acceptances, const int32_t * n_generated, const llama_token * generated,
        const int32_t * limits, const pymtp_draft_limits * round, int32_t * lengths, llama_token * tokens,
        pymtp_draft_choice * choice) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_seqs >= 1, "a round has a sequence");
        add_generated(n_seqs, texts, n_generated, generated, lengths);
        if (std::any_of(lengths, lengths + n_seqs, [](int32_t length) { return length < 0; })) {
            return -1;
        }
        const auto is_promising = [](const pymtp_text_drafts * text) { return text && text->is_promising(); };
        if (std::none_of(texts, texts + n_seqs, is_promising)) {
            return 0;
        }
        std::vector<pymtp_text_sequence> sequences;
        for (int32_t k = 0; k < n_seqs; ++k) {
            sequences.push_back({texts[k], acceptances[k], limits[k]});
        }
        const pymtp_text_choice chosen = pymtp_choose_text(*costs, sequences, limits_of(*round));
        if (!chosen.uses_text()) {
            return 0;
        }
        for (int32_t k = 0; k < n_seqs; ++k) {
            lengths[k] = (int32_t) chosen.tokens[k].size();
            std::copy(chosen.tokens[k].begin(), chosen.tokens[k].end(), tokens + k * round->max_text);
        }
        *choice = {chosen.depth, chosen.split};
        return 1;
    });
}

int32_t pymtp_extend_drafts(
        const pymtp_costs * costs, pymtp_text_drafts * text, pymtp_acceptance * acceptance, int32_t limit,
        const pymtp_draft_limits * round, const llama_token * drafts, const float * confidences,
        int32_t n_drafts, llama_token * tokens) {
    return pymtp_guarded<int32_t>(0, [&] {
        pymtp_require(n_drafts >= 0, "drafts are counted from zero");
        const std::vector<llama_token> chosen = pymtp_extend_by_text(*costs, {text, acceptance, limit},
                limits_of(*round), {drafts, drafts + n_drafts}, confidences);
        std::copy(chosen.begin(), chosen.end(), tokens);
        return (int32_t) chosen.size();
    });
}

void pymtp_costs_observe_verify(pymtp_costs * costs, int32_t n_seqs, int32_t verified, double verify_seconds) {
    pymtp_guarded([&] {
        pymtp_require(n_seqs >= 1 && verified >= 0, "a round has a sequence, and drafts are counted from zero");
        costs->observe_verify(n_seqs, verified, verify_seconds);
    });
}
