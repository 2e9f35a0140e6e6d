// Chooses between drafts from text and drafts of the head, for the most tokens/s.
#pragma once

#include "depth.h"
#include "text_drafts.h"

#include <vector>

// One sequence of a round, as the choice sees it.
struct pymtp_text_sequence {
    pymtp_text_drafts * text;       // null: no drafts from text
    pymtp_acceptance *  acceptance; // of the head's drafts
    int                 limit;      // the most drafts that the sequence can use
};

// Limits for the drafts of a round.
struct pymtp_round_limits {
    int max_text; // drafts from text of a sequence
    int max_head; // drafts of the head for a sequence
    int room;     // rows in a decode, of all sequences together
};

// The drafts of a round.
struct pymtp_text_choice {
    // The drafts from text of each sequence; those without any get drafts of the head. If no sequence has drafts from
    // text, the other fields have no meaning, and pymtp_depth chooses.
    std::vector<std::vector<llama_token>> tokens;

    int  depth = 0;     // the number of drafts of the head for each of the other sequences
    bool split = false; // whether neighbours with drafts from text share a decode, and the others share other decodes

    bool uses_text() const;
};

// Returns the numbers of drafts from text, in rising order, that a verification may have. There are few of them,
// because each number has a graph of its own. n_head: the largest number of drafts of the head
std::vector<int> pymtp_text_depths(int n_head, int max_text);

// Compares, by the goal of pymtp_depth (the geometric mean of the expected tokens of all sequences, per second), the
// best round with drafts of the head alone and rounds in which some sequences verify what followed an earlier place of
// their text. A sequence has drafts from one of the two sources; all sequences of a source have the same number.
pymtp_text_choice pymtp_choose_text(
        const pymtp_costs & costs, const std::vector<pymtp_text_sequence> & sequences,
        const pymtp_round_limits & limits);

// Returns the drafts from text to verify after `drafts` of the head, all of which are verified: the text that a head's
// draft leads back into takes over. For a sequence alone.
// confidences: the head's probability of each draft
std::vector<llama_token> pymtp_extend_by_text(
        const pymtp_costs & costs, const pymtp_text_sequence & sequence, const pymtp_round_limits & limits,
        const std::vector<llama_token> & drafts, const float * confidences);
