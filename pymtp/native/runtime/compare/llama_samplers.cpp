// Applies llama.cpp's own samplers, to compare ours with them.
#include "compare/pymtp_compare.h"

#include "api_guard.h"
#include "model.h"

#include "llama-cpp.h"

#include <cmath>
#include <vector>

namespace {

// Returns llama.cpp's sampler of a kind, for a text of n tokens.
llama_sampler * make_sampler(
        int32_t kind, const llama_vocab * vocab, const pymtp_sampling & params,
        const std::vector<const char *> & breakers, int32_t n) {
    const auto last = [n](int32_t last_n) { return last_n < 0 ? n : last_n; }; // llama.cpp has no number for all tokens
    switch (kind) {
        case PYMTP_SAMPLER_PENALTIES:
            return llama_sampler_init_penalties(llama_vocab_n_tokens(vocab), last(params.penalty_last_n),
                    params.repeat_penalty, params.frequency_penalty, params.presence_penalty);
        case PYMTP_SAMPLER_DRY:
            return llama_sampler_init_dry(vocab, params.dry_multiplier, params.dry_base, params.dry_allowed_length,
                    last(params.dry_penalty_last_n), const_cast<const char **>(breakers.data()), breakers.size());
        case PYMTP_SAMPLER_TOP_N_SIGMA: return llama_sampler_init_top_n_sigma(params.top_n_sigma);
        case PYMTP_SAMPLER_TOP_K:       return llama_sampler_init_top_k(params.top_k);
        case PYMTP_SAMPLER_TYPICAL_P:   return llama_sampler_init_typical(params.typical_p, 0);
        case PYMTP_SAMPLER_TOP_P:       return llama_sampler_init_top_p(params.top_p, 0);
        case PYMTP_SAMPLER_MIN_P:       return llama_sampler_init_min_p(params.min_p, 0);
        case PYMTP_SAMPLER_XTC:
            return llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 0, params.seed);
        default:
            return llama_sampler_init_temp_ext(params.temperature, params.dynatemp_range, params.dynatemp_exponent);
    }
}

} // namespace

int pymtp_llama_samplers(
        const pymtp_model * model, const pymtp_sampling * params, const char * const * breakers, int32_t n_breakers,
        const float * logits, const llama_token * prefix, int32_t n, float * probabilities) {
    return pymtp_guarded<int>(PYMTP_FAILED, [&] {
        const llama_vocab * vocab = llama_model_get_vocab(model->shared.get());
        const llama_sampler_ptr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
        const std::vector<const char *> strings(breakers, breakers + n_breakers);
        for (int32_t i = 0; i < params->n_samplers; ++i) {
            llama_sampler_chain_add(chain.get(), make_sampler(params->samplers[i], vocab, *params, strings, n));
        }
        llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(0));
        for (int32_t i = 0; i < n; ++i) {
            llama_sampler_accept(chain.get(), prefix[i]);
        }
        std::vector<llama_token_data> tokens;
        for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
            tokens.push_back({token, logits[token], 0.0f});
            probabilities[token] = 0.0f;
        }
        llama_token_data_array remaining = {tokens.data(), tokens.size(), -1, false};
        llama_sampler_apply(chain.get(), &remaining);
        for (size_t i = 0; i < remaining.size; ++i) {
            probabilities[remaining.data[i].id] = remaining.data[i].p;
        }
        return (int) PYMTP_OK;
    });
}
