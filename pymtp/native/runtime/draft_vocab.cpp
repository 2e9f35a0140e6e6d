#include "draft_vocab.h"

#include "pymtp_context.h"

#include <algorithm>
#include <numeric>

namespace {

// Maximum number of recent rows. It is large enough that all rows are rarely assigned anew, and small enough that
// writing the recent rows takes less time than reading a layer's weights.
constexpr int32_t MAX_RECENT = 512;

// In the share of sampled tokens outside the set, the weight of a token is multiplied by this factor for each later
// token. So mainly the last 50 tokens count.
constexpr double DECAY = 0.98;

} // namespace

int32_t pymtp_draft_vocab_size(int32_t n_vocab, int32_t n) {
    if (n == 0 || n >= n_vocab) {
        return n_vocab;
    }
    return std::min(n_vocab, std::max(2*PYMTP_ROW_MULTIPLE, (int32_t) GGML_PAD(n, PYMTP_ROW_MULTIPLE)));
}

int32_t pymtp_draft_vocab::n_recent(int32_t n) {
    return std::min(MAX_RECENT, std::max(PYMTP_ROW_MULTIPLE, n/8/PYMTP_ROW_MULTIPLE*PYMTP_ROW_MULTIPLE));
}

pymtp_draft_vocab::pymtp_draft_vocab(const llama_vocab & vocab, int32_t n, double max_outside) :
    n_main(n - n_recent(n)), max_outside(max_outside), states(llama_vocab_n_tokens(&vocab)), row_tokens(n) {
    std::vector<llama_token> all(states.size());
    std::iota(all.begin(), all.end(), 0);
    for (llama_token token : all) {
        if (llama_vocab_is_control(&vocab, token) || llama_vocab_is_eog(&vocab, token) ||
                (llama_vocab_get_attr(&vocab, token) & LLAMA_TOKEN_ATTR_USER_DEFINED)) {
            states[token].last_seen = now;
        }
    }
    assign_all_rows(std::move(all));
}

// Returns whether token a ranks before token b: a was seen more recently or, if neither was ever seen, has the lower
// id.
bool pymtp_draft_vocab::ranks_before(llama_token a, llama_token b) const {
    return states[a].last_seen != states[b].last_seen ? states[a].last_seen > states[b].last_seen : a < b;
}

void pymtp_draft_vocab::assign(size_t row, llama_token token) {
    row_tokens[row] = token;
    states[token].in_vocab = true;
}

// Fills all rows with the highest-ranking of the given tokens. The lowest-ranking of those get the recent rows, in the
// order of their rank.
void pymtp_draft_vocab::assign_all_rows(std::vector<llama_token> from) {
    const auto best = [this](llama_token a, llama_token b) { return ranks_before(a, b); };

    std::nth_element(from.begin(), from.begin() + row_tokens.size() - 1, from.end(), best);
    for (llama_token token : from) {
        states[token].in_vocab = false;
    }
    from.resize(row_tokens.size());
    std::nth_element(from.begin(), from.begin() + n_main, from.end(), best);
    std::sort(from.begin() + n_main, from.end(), best);
    // sorted by id, so that neighbouring rows of the file are read in one go
    std::sort(from.begin(), from.begin() + n_main);
    for (size_t row = 0; row < from.size(); ++row) {
        assign(row, from[row]);
    }
    assigned_at = now;
    next_free   = row_tokens.size();
}

void pymtp_draft_vocab::observe(const llama_token * text, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (text[i] < 0) { // a token of an image is never drafted
            continue;
        }
        state & s = states[text[i]];
        s.last_seen = ++now;
        if (!s.in_vocab && !s.waiting) {
            s.waiting = true;
            waiting.push_back(text[i]);
        }
    }
}

void pymtp_draft_vocab::observe_sampled(const llama_token * text, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const state & s = states[text[i]];
        // a waiting token counts as inside the set, because it joins before the next drafts
        outside_share = DECAY*outside_share + (1.0 - DECAY)*!(s.in_vocab || s.waiting);
    }
    // The limit for returning to the set is lower than the limit for leaving it, because each change rebuilds graphs.
    worthwhile = !disabled && outside_share <= (worthwhile ? max_outside : max_outside/2);
    observe(text, n);
}

pymtp_draft_vocab::rows pymtp_draft_vocab::update() {
    if (waiting.empty()) {
        return rows::none;
    }
    rows changed = rows::recent;
    for (size_t i = 0; i < waiting.size(); ++i) {
        while (next_free > n_main && states[row_tokens[next_free - 1]].last_seen > assigned_at) {
            --next_free;
        }
        if (next_free == n_main) {
            std::vector<llama_token> all = row_tokens;
            all.insert(all.end(), waiting.begin() + i, waiting.end());
            assign_all_rows(std::move(all));
            changed = rows::all;
            break;
        }
        states[row_tokens[--next_free]].in_vocab = false;
        assign(next_free, waiting[i]);
    }
    for (llama_token token : waiting) {
        states[token].waiting = false;
    }
    waiting.clear();
    return changed;
}
