#include "draft_vocab.h"

#include "pymtp_context.h"

#include <algorithm>
#include <numeric>

namespace {

// enough that rows are seldom given out anew, few enough that writing them costs less than reading a layer
constexpr int32_t MOST_ANNEX = 512;

// the weight of a token chosen, per token after it: the last 50 count
constexpr double DECAY = 0.98;

} // namespace

int32_t pymtp_draft_vocab_size(int32_t n_vocab, int32_t n) {
    if (n == 0 || n >= n_vocab) {
        return n_vocab;
    }
    return std::min(n_vocab, std::max(2*PYMTP_ROW_STEP, (int32_t) GGML_PAD(n, PYMTP_ROW_STEP)));
}

int32_t pymtp_draft_vocab::n_annex(int32_t n) {
    return std::min(MOST_ANNEX, std::max(PYMTP_ROW_STEP, n/8/PYMTP_ROW_STEP*PYMTP_ROW_STEP));
}

pymtp_draft_vocab::pymtp_draft_vocab(const llama_vocab & vocab, int32_t n, double most_outside) :
    n_main(n - n_annex(n)), most_outside(most_outside), states(llama_vocab_n_tokens(&vocab)), by_row(n) {
    std::vector<llama_token> all(states.size());
    std::iota(all.begin(), all.end(), 0);
    for (llama_token token : all) {
        if (llama_vocab_is_control(&vocab, token) || llama_vocab_is_eog(&vocab, token) ||
                (llama_vocab_get_attr(&vocab, token) & LLAMA_TOKEN_ATTR_USER_DEFINED)) {
            states[token].seen = now;
        }
    }
    give_out_rows(std::move(all));
}

// Seen later or, of those never seen, an earlier merge.
bool pymtp_draft_vocab::better(llama_token a, llama_token b) const {
    return states[a].seen != states[b].seen ? states[a].seen > states[b].seen : a < b;
}

void pymtp_draft_vocab::hold(size_t row, llama_token token) {
    by_row[row] = token;
    states[token].held = true;
}

// The best of the tokens get the rows, the least of these the annex, the best of it first.
void pymtp_draft_vocab::give_out_rows(std::vector<llama_token> from) {
    const auto best = [this](llama_token a, llama_token b) { return better(a, b); };

    std::nth_element(from.begin(), from.begin() + by_row.size() - 1, from.end(), best);
    for (llama_token token : from) {
        states[token].held = false;
    }
    from.resize(by_row.size());
    std::nth_element(from.begin(), from.begin() + n_main, from.end(), best);
    std::sort(from.begin() + n_main, from.end(), best);
    std::sort(from.begin(), from.begin() + n_main); // neighbours in the file are read together
    for (size_t row = 0; row < from.size(); ++row) {
        hold(row, from[row]);
    }
    given = now;
    next  = by_row.size();
}

void pymtp_draft_vocab::see(const llama_token * text, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        state & s = states[text[i]];
        s.seen = ++now;
        if (!s.held && !s.waiting) {
            s.waiting = true;
            waiting.push_back(text[i]);
        }
    }
}

void pymtp_draft_vocab::see_chosen(const llama_token * text, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const state & s = states[text[i]];
        outside = DECAY*outside + (1.0 - DECAY)*!(s.held || s.waiting); // a waiting token joins before the next drafts
    }
    // each change builds graphs anew: not for a token more or less
    paying = !given_up && outside <= (paying ? most_outside : most_outside/2);
    see(text, n);
}

pymtp_draft_vocab::rows pymtp_draft_vocab::update() {
    if (waiting.empty()) {
        return rows::none;
    }
    rows changed = rows::annex;
    for (size_t i = 0; i < waiting.size(); ++i) {
        while (next > n_main && states[by_row[next - 1]].seen > given) {
            --next;
        }
        if (next == n_main) {
            std::vector<llama_token> all = by_row;
            all.insert(all.end(), waiting.begin() + i, waiting.end());
            give_out_rows(std::move(all));
            changed = rows::all;
            break;
        }
        states[by_row[--next]].held = false;
        hold(next, waiting[i]);
    }
    for (llama_token token : waiting) {
        states[token].waiting = false;
    }
    waiting.clear();
    return changed;
}
