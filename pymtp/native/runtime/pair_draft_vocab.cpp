// Drafts over part of the vocabulary: the set follows the text, and its rows of the output layer are copied from the
// model's file.
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

// Bytes of weights that a graph reads; of experts, those that one token uses.
struct weights_read {
    double trunk = 0.0; // with the output layer
    double block = 0.0; // the head's block, without its output layer
    double layer = 0.0; // the output layer for drafts

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

// Returns the share of tokens outside the set above which drafts over the whole vocabulary are better. In a round of n
// drafts, when three of four are accepted, a token outside the set costs 0.4 n times its share of the tokens. A
// verification is taken to cost 1.25 times a single token. Both numbers matter little, because the shares that occur
// differ by more.
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
        return; // memory is only planned, nothing will be computed
    }
    file_rows = shared.output_file_rows;
    // a size that the user has chosen is always used
    const double max_share = options.adaptive_draft_vocab ? max_outside(*model, (double) n/n_vocab) : 1.0;
    draft_vocab = std::make_unique<pymtp_draft_vocab>(*llama_model_get_vocab(model.get()), n, max_share);
    stale_rows  = pymtp_draft_vocab::rows::all;
    write_draft_rows();
}

// Adds tokens of the text to the draft vocabulary, from its next update on.
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

// Brings the device's rows up to date. While drafts use the whole vocabulary, tokens wait; when the file cannot be
// read any more, drafts use the whole vocabulary from then on.
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
