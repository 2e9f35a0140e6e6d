// Builds a batch for llama_decode, with tokens of one or more sequences, or with rows of images.
#pragma once

#include "llama.h"

#include <cstdint>
#include <string>
#include <vector>

class pymtp_batch {
public:
    void clear();
    void add(llama_token token, int32_t pos, llama_seq_id seq, bool output);
    // Adds a row of an image: n_embd floats in place of a token's embedding. All or none of a batch's tokens are such.
    void add_image_row(const float * row, int32_t n_embd, int32_t pos, llama_seq_id seq, bool output);
    // sets the hidden states, one row for each token, that the head combines the tokens with
    void set_rows(const float * rows) { embd = rows; }
    int32_t size() const { return tokens.size(); }
    std::string describe() const;
    llama_batch view();

private:
    std::vector<llama_token>    tokens;
    std::vector<llama_pos>      positions;
    std::vector<int32_t>        n_seq_ids;
    std::vector<llama_seq_id>   seqs;
    std::vector<llama_seq_id *> seq_ids;
    std::vector<int8_t>         outputs;
    const float *               embd = nullptr;
    std::vector<float>          image_rows;
    std::vector<llama_pos>      sections; // positions of rows of images, for each section of M-RoPE
};
