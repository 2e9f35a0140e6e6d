// speak MODEL.gguf N_DRAFT TEMPERATURE N TEXT: the tokens that follow a text, as numbers, then how many drafts were accepted.
#include "pymtp.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static void require(bool fine, const char * what) {
    if (!fine) {
        fprintf(stderr, "%s: %s\n", what, pymtp_last_error());
        exit(1);
    }
}

int main(int argc, char ** argv) {
    if (argc != 6) {
        fprintf(stderr, "speak MODEL.gguf N_DRAFT TEMPERATURE N TEXT\n");
        return 2;
    }
    const int32_t n_draft = atoi(argv[2]);
    const int32_t n_wanted = atoi(argv[4]);

    pymtp_set_log(nullptr, 0);
    pymtp_model_options loading = {};
    loading.mtp        = true;
    loading.use_mmap   = true;
    loading.split_mode = LLAMA_SPLIT_MODE_LAYER;
    pymtp_model * model = pymtp_model_load(argv[1], &loading);
    require(model, "load");

    std::vector<llama_token> prompt(4096);
    const int32_t n = pymtp_tokenize(model, argv[5], strlen(argv[5]), prompt.data(), prompt.size(), true);
    require(n > 0, "tokenize");

    llama_context_params params = llama_context_default_params();
    params.n_ctx     = 1024;
    params.n_threads = params.n_threads_batch = 2;
    pymtp_pair_options options = {};
    options.n_draft   = n_draft;
    options.n_seq_max = 1;
    options.n_outputs = 1;
    options.sample_on = PYMTP_SAMPLE_ON_AUTO;
    pymtp_pair * pair = pymtp_pair_init(model, params, &options);
    require(pair, "context");

    pymtp_sampling sampling = {};
    sampling.temperature    = atof(argv[3]);
    sampling.top_k          = 40;
    sampling.top_p          = 0.95;
    sampling.seed           = 7;
    sampling.penalty_last_n = 64;
    sampling.repeat_penalty = 1.0f;
    sampling.n_logprobs     = -1;
    const int32_t seq = 0;
    require(pymtp_pair_set_sampling(pair, seq, &sampling) == PYMTP_OK, "sampling");
    const float * logits = nullptr;
    require(pymtp_pair_prefill(pair, 1, &seq, prompt.data(), &n, nullptr, 0, false, &logits) == PYMTP_OK, "prefill");

    std::vector<llama_token> text(1);
    require(pymtp_pair_first_token(pair, seq, &text[0]) == PYMTP_OK, "first token");
    int32_t n_accepted = 0;
    while ((int32_t) text.size() < n_wanted) {
        std::vector<llama_token> rows(1 + n_draft);
        std::vector<llama_token> sampled(1 + n_draft);
        std::vector<float> confidences(std::max(1, n_draft));
        pymtp_outcome outcome = {};
        rows[0] = text.back();
        if (n_draft > 0) {
            require(pymtp_pair_draft_tokens(
                pair, 1, &seq, rows.data(), n_draft, rows.data() + 1, confidences.data(), &outcome) == PYMTP_OK, "draft");
        }
        const int32_t n_rows = rows.size();
        require(pymtp_pair_verify_tokens(pair, 1, &seq, rows.data(), &n_rows, sampled.data(), &outcome) == PYMTP_OK, "verify");
        text.insert(text.end(), sampled.begin(), sampled.begin() + outcome.n);
        n_accepted += outcome.n - 1;
        if (outcome.n < n_rows) {
            require(pymtp_pair_rewind(pair, seq, pymtp_pair_n_past(pair, seq) - (n_rows - outcome.n)) == PYMTP_OK, "rewind");
        }
    }
    for (int32_t i = 0; i < n_wanted; ++i) {
        printf("%d ", text[i]);
    }
    printf("\n%d\n", n_accepted);
    pymtp_pair_free(pair);
    pymtp_model_free(model);
    return 0;
}
