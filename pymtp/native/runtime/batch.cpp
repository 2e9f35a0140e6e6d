#include "batch.h"

void pymtp_batch::clear() {
    tokens.clear();
    positions.clear();
    n_seq_ids.clear();
    seqs.clear();
    outputs.clear();
    image_rows.clear();
    embd = nullptr;
}

void pymtp_batch::add(llama_token token, int32_t pos, llama_seq_id seq, bool output) {
    tokens.push_back(token);
    positions.push_back(pos);
    n_seq_ids.push_back(1);
    seqs.push_back(seq);
    outputs.push_back(output);
}

void pymtp_batch::add_image_row(const float * row, int32_t n_embd, int32_t pos, llama_seq_id seq, bool output) {
    add(LLAMA_TOKEN_NULL, pos, seq, output);
    image_rows.insert(image_rows.end(), row, row + n_embd);
}

std::string pymtp_batch::describe() const {
    return std::to_string(tokens.size()) + " tokens at position " + std::to_string(positions.front());
}

llama_batch pymtp_batch::view() {
    seq_ids.resize(seqs.size());
    for (size_t i = 0; i < seqs.size(); ++i) {
        seq_ids[i] = &seqs[i];
    }
    llama_batch batch = {};
    batch.n_tokens = size();
    batch.token    = tokens.data();
    batch.embd     = const_cast<float *>(embd);
    batch.pos      = positions.data();
    if (!image_rows.empty()) {
        // Of rows, llama.cpp takes the positions of all four sections. It finds cells by the first one, and compares
        // the others only within a cell; RoPE gets positions from pymtp_set_images.
        sections.clear();
        for (int i = 0; i < 4; ++i) {
            sections.insert(sections.end(), positions.begin(), positions.end());
        }
        batch.token = nullptr;
        batch.embd  = image_rows.data();
        batch.pos   = sections.data();
    }
    batch.n_seq_id = n_seq_ids.data();
    batch.seq_id   = seq_ids.data();
    batch.logits   = outputs.data();
    return batch;
}
