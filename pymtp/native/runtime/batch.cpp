#include "batch.h"

void pymtp_batch::clear() {
    tokens.clear();
    positions.clear();
    n_seq_ids.clear();
    seqs.clear();
    outputs.clear();
    embd = nullptr;
}

void pymtp_batch::add(llama_token token, int32_t pos, llama_seq_id seq, bool output) {
    tokens.push_back(token);
    positions.push_back(pos);
    n_seq_ids.push_back(1);
    seqs.push_back(seq);
    outputs.push_back(output);
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
    batch.n_seq_id = n_seq_ids.data();
    batch.seq_id   = seq_ids.data();
    batch.logits   = outputs.data();
    return batch;
}
