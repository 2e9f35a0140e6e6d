// Drafts over part of the vocabulary: which tokens they are follows the text, and their rows of the output layer are copied
// from the model's file.
#include "host.h"
#include "pair.h"

#include "llama-model.h"
#include "pymtp_context.h"

#include <algorithm>
#include <string>

pymtp_draft_rows::pymtp_draft_rows(pymtp_pair & pair, bool value) : draft(pair.draft.get()) { pymtp_use_draft_rows(draft, value); }
pymtp_draft_rows::~pymtp_draft_rows() { pymtp_use_draft_rows(draft, false); }

// Bytes that a graph reads of weights. Of experts, those that a token uses.
struct weights_read {
    double trunk = 0.0; // with the output layer
    double block = 0.0; // of the head, without
    double layer = 0.0; // that gives the logits of drafts

    explicit weights_read(const llama_model & model) : layer(ggml_nbytes(pymtp_draft_output(model))) {
        const llama_hparams & hparams = model.hparams;
        const std::string     head    = "blk." + std::to_string(hparams.n_layer()) + ".";
        for (const auto & [name, tensor] : model.tensors_by_name) {
            double size = ggml_nbytes(tensor);
            if (tensor->ne[2] > 1 && tensor->ne[2] == hparams.n_expert) {
                size *= (double) hparams.n_expert_used(0)/hparams.n_expert;
            }
            if (name.rfind(head, 0) == 0) {
                block += tensor == pymtp_draft_output(model) ? 0.0 : size;
            } else if (name.rfind("blk.", 0) == 0) {
                trunk += size;
            }
        }
        trunk += ggml_nbytes(model.output);
    }
};

// Of a round of n drafts, a token outside the set takes away 0.4 n times its share of the tokens, where three of four drafts
// are accepted. A verification is taken to cost 1.25 single tokens. Both weigh little: what is compared differs by more.
static double most_outside(const llama_model & model, double share) {
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
    const int32_t n_annex = pymtp_draft_vocab::n_annex(n);
    pymtp_make_draft_rows(draft.get(), n - n_annex, n_annex);
    if (!shared.output_rows) {
        return; // memory is planned, nothing is computed
    }
    file_rows  = shared.output_rows;
    // what was asked for in numbers is kept to
    const double most = options.weigh_draft_vocab ? most_outside(*model, (double) n/n_vocab) : 1.0;
    vocabulary = std::make_unique<pymtp_draft_vocab>(*llama_model_get_vocab(model.get()), n, most);
    unwritten  = pymtp_draft_vocab::rows::all;
    write_draft_rows();
}

// Tokens of the text, which drafts are to be made over from the next write on.
void pymtp_pair::see(const llama_token * text, size_t n) {
    if (vocabulary) {
        vocabulary->see(text, n);
    }
}

void pymtp_pair::see_chosen(const llama_token * text, size_t n) {
    if (vocabulary) {
        vocabulary->see_chosen(text, n);
    }
}

// Tokens wait while drafts are made over all. Where the file cannot be read any more, they are from here on.
void pymtp_pair::write_draft_rows() {
    if (!vocabulary || !vocabulary->pays()) {
        return;
    }
    unwritten = std::max(unwritten, vocabulary->update());
    if (unwritten == pymtp_draft_vocab::rows::none) {
        return;
    }
    const std::vector<llama_token> & tokens = vocabulary->tokens();
    const bool   only_annex = unwritten == pymtp_draft_vocab::rows::annex;
    const size_t n          = only_annex ? pymtp_draft_vocab::n_annex(tokens.size()) : tokens.size();
    const size_t first      = tokens.size() - n;

    std::vector<uint8_t> data(n*file_rows->row_size());
    try {
        file_rows->read(tokens.data() + first, n, data.data());
    } catch (const std::exception & error) {
        pymtp_log_error(std::string("drafts are made over the whole vocabulary: ") + error.what());
        vocabulary->give_up();
        drafts_over_rows = false;
        return;
    }
    pymtp_set_draft_rows(draft.get(), tokens.data(), only_annex, data.data());
    unwritten = pymtp_draft_vocab::rows::none;
}
