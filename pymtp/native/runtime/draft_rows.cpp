#include "draft_rows.h"

#include "callbacks.h"

#include "llama-model.h"
#include "pymtp_context.h"

#include <algorithm>
#include <string>

pymtp_reduced_output_scope::pymtp_reduced_output_scope(pymtp_contexts & contexts, bool value) :
    draft(contexts.draft.get()) {
    pymtp_use_reduced_output(draft, value);
}

pymtp_reduced_output_scope::~pymtp_reduced_output_scope() { pymtp_use_reduced_output(draft, false); }

// The bytes of weights that a graph reads for one token. Of experts, only those that one token uses are counted.
struct weights_read {
    double trunk = 0.0; // weights of the trunk, with its output layer
    double block = 0.0; // weights of the head's block, without its output layer
    double layer = 0.0; // weights of the output layer for drafts

    explicit weights_read(const llama_model & model) : layer(ggml_nbytes(pymtp_draft_output_layer(model))) {
        const llama_hparams & hparams = model.hparams;
        const std::string     head    = "blk." + std::to_string(hparams.n_layer()) + ".";
        for (const auto & [name, tensor] : model.tensors_by_name) {
            double size = ggml_nbytes(tensor);
            if (tensor->ne[2] > 1 && tensor->ne[2] == hparams.n_expert) {
                size *= (double) hparams.n_expert_used(0)/hparams.n_expert;
            }
            if (name.rfind(head, 0) == 0) {
                block += tensor == pymtp_draft_output_layer(model) ? 0.0 : size;
            } else if (name.rfind("blk.", 0) == 0) {
                trunk += size;
            }
        }
        trunk += ggml_nbytes(model.output);
    }
};

// Returns a share of tokens: if more of the sampled tokens are outside the draft vocabulary, drafts over the whole
// vocabulary are better. The estimate assumes that three of four drafts are accepted, so that in a round of n drafts
// tokens outside the vocabulary cost 0.4 n times their share in accepted tokens, and that a verification takes 1.25
// times as long as a single token. Neither number matters much, because the shares that occur in practice differ much
// more between texts.
static double max_outside(const llama_model & model, double share) {
    constexpr int n_drafts = 3;
    const weights_read read(model);
    const double step  = read.block + share*read.layer;
    const double saved = (1.0 - share)*read.layer;
    return saved/(1.25*read.trunk + n_drafts*step)/0.4;
}

pymtp_draft_rows::pymtp_draft_rows(const pymtp_contexts & contexts, const pymtp_model & model) :
    draft(contexts.draft.get()), n_vocab(contexts.n_vocab) {
    const int32_t n = pymtp_draft_vocab_size(n_vocab, contexts.options.n_draft_vocab);
    if (!draft || contexts.options.prefill != PYMTP_PREFILL_FUSED || n == n_vocab) {
        return;
    }
    const int32_t n_recent = pymtp_draft_vocab::n_recent(n);
    pymtp_make_reduced_output(draft, n - n_recent, n_recent);
    if (!model.output_file_rows) {
        return; // memory is only planned, so nothing will be computed
    }
    file = model.output_file_rows;
    // If the user has chosen the size, the draft vocabulary is always used.
    const double max_share =
        contexts.options.adaptive_draft_vocab ? max_outside(*contexts.model, (double) n/n_vocab) : 1.0;
    set = std::make_unique<pymtp_draft_vocab>(*llama_model_get_vocab(contexts.model.get()), n, max_share);
    write();
}

void pymtp_draft_rows::observe(const llama_token * text, size_t n) {
    if (set) {
        set->observe(text, n);
    }
}

void pymtp_draft_rows::observe_sampled(const llama_token * text, size_t n) {
    if (set) {
        set->observe_sampled(text, n);
    }
}

void pymtp_draft_rows::reset_usage() {
    if (set) {
        set->reset_usage();
    }
}

void pymtp_draft_rows::write() {
    if (!is_used()) {
        return;
    }
    stale = std::max(stale, set->update());
    if (stale == pymtp_draft_vocab::rows::none) {
        return;
    }
    const std::vector<llama_token> & tokens = set->tokens();
    const bool   only_recent = stale == pymtp_draft_vocab::rows::recent;
    const size_t n           = only_recent ? pymtp_draft_vocab::n_recent(tokens.size()) : tokens.size();
    const size_t first       = tokens.size() - n;

    std::vector<uint8_t> data(n*file->row_size());
    try {
        file->read(tokens.data() + first, n, data.data());
    } catch (const std::exception & error) {
        pymtp_log_error(std::string("drafts are made over the whole vocabulary: ") + error.what());
        set->disable();
        is_reduced = false;
        return;
    }
    pymtp_set_reduced_output(draft, tokens.data(), only_recent, data.data());
    stale = pymtp_draft_vocab::rows::none;
}
