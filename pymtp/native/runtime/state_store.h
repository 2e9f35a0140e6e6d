// Copies sequences, empties them, saves them to host memory and loads them: K and V token by token, and the state that
// a sequence continues from. pymtp.h describes the operations. All of them throw pymtp_failure.
#pragma once

#include "contexts.h"
#include "draft_rows.h"
#include "head_sync.h"
#include "sequence.h"

#include <vector>

class pymtp_state_store {
public:
    pymtp_state_store(pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences, pymtp_head_sync & head,
            pymtp_draft_rows & vocab);

    void clear(int32_t seq);
    void copy(int32_t from, int32_t to);

    size_t            cell_bytes() const; // bytes of K and V of one token
    size_t            max_state_bytes() const;
    pymtp_cell_format cell_format() const;

    // Must be called before save_cells and copy_cells. A failure here may leave the sequence without a head, a failure
    // of save_cells leaves it intact.
    void prepare_cells(int32_t seq, int32_t first, int32_t n);
    void save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data);
    void load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data);
    void copy_cells(int32_t from, int32_t to, int32_t first, int32_t n);
    void retain_cells(int32_t seq, int32_t n);

    // Must be called before save_state. Returns the size of the state.
    size_t prepare_state(int32_t seq, bool with_logits);
    void   save_state(int32_t seq, bool with_logits, uint8_t * data);
    // Returns whether the state includes logits.
    bool   check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) const;
    void   load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size);

private:
    pymtp_contexts &              contexts;
    std::vector<pymtp_sequence> & sequences;
    pymtp_head_sync &             head;
    pymtp_draft_rows &            vocab;

    void check_staging(int32_t seq, int32_t first, int32_t n) const;
    void stage(int32_t seq, int32_t n);
    void clear_unstaged(int32_t seq);
};
