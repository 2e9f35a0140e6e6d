// Maintains the draft vocabulary of a pair: adds tokens of the text, and copies the tokens' rows of the output layer
// from the model's file to the device.
#include "callbacks.h"
#include "pair.h"

#include "llama-model.h"
#include "pymtp_context.h"

#include <algorithm>
#include <string>

pymtp_reduced_output_scope::pymtp_reduced_output_scope(pymtp_pair & pair, bool value) : draft(pair.draft.get()) {
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

void pymtp_pair::make_draft_vocab(const pymtp_model & shared) {
    const int32_t n = pymtp_draft_vocab_size(n_vocab, options.n_draft_vocab);
    if (n == n_vocab) {
        return;
    }
    const int32_t n_recent = pymtp_draft_vocab::n_recent(n);
    pymtp_make_reduced_output(draft.get(), n - n_recent, n_recent);
    if (!shared.output_file_rows) {
        return; // memory is only planned, so nothing will be computed
    }
    file_rows = shared.output_file_rows;
    // If the user has chosen the size, the draft vocabulary is always used.
    const double max_share = options.adaptive_draft_vocab ? max_outside(*model, (double) n/n_vocab) : 1.0;
    draft_vocab = std::make_unique<pymtp_draft_vocab>(*llama_model_get_vocab(model.get()), n, max_share);
    stale_rows  = pymtp_draft_vocab::rows::all;
    write_draft_rows();
}

// Records tokens of the text, which join the draft vocabulary with its next update.
void pymtp_pair::observe_text(const llama_token * text, size_t n) {
    if (draft_vocab) {
        draft_vocab->observe(text, n);
    }
}

void pymtp_pair::observe_sampled(const llama_token * text, size_t n) {
    if (draft_vocab) {
        draft_vocab->observe_sampled(text, n);
    }
}

// Updates the draft vocabulary and its rows on the device. Does nothing while drafts use the whole vocabulary. If the
// model's file cannot be read any more, drafts use the whole vocabulary from then on.
void pymtp_pair::write_draft_rows() {
    if (!draft_vocab || !draft_vocab->is_worthwhile()) {
        return;
    }
    stale_rows = std::max(stale_rows, draft_vocab->update());
    if (stale_rows == pymtp_draft_vocab::rows::none) {
        return;
    }
    const std::vector<llama_token> & tokens = draft_vocab->tokens();
    const bool   only_recent = stale_rows == pymtp_draft_vocab::rows::recent;
    const size_t n           = only_recent ? pymtp_draft_vocab::n_recent(tokens.size()) : tokens.size();
    const size_t first       = tokens.size() - n;

    std::vector<uint8_t> data(n*file_rows->row_size());
    try {
        file_rows->read(tokens.data() + first, n, data.data());
    } catch (const std::exception & error) {
        pymtp_log_error(std::string("drafts are made over the whole vocabulary: ") + error.what());
        draft_vocab->disable();
        drafts_reduced = false;
        return;
    }
    pymtp_set_reduced_output(draft.get(), tokens.data(), only_recent, data.data());
    stale_rows = pymtp_draft_vocab::rows::none;
}
