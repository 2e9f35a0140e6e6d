#include "text_drafts.h"

#include <algorithm>

using namespace pymtp_tuning;

void pymtp_text_drafts::add(const llama_token * tokens, size_t n) {
    judge(first, tokens, n);
    judge(second, tokens, n);
    text.add(tokens, n);
    look_up(first, nullptr, 0, FINE_DEPTHS);
}

void pymtp_text_drafts::judge(open_guesses & open, const llama_token * tokens, size_t n) {
    const size_t n_drafts = open.drafts.size();
    if (n >= n_drafts && std::equal(open.drafts.begin(), open.drafts.end(), tokens)) {
        for (size_t i = 0; i < open.guesses.size() && n_drafts + i < n; ++i) {
            const bool right = open.guesses[i].token == tokens[n_drafts + i];
            rates.observe(open.guesses[i], right, odds);
            if (!right) {
                break; // nothing is known of the guesses after the first wrong one
            }
        }
    }
    open.guesses.clear();
    open.found.clear();
}

void pymtp_text_drafts::look_up(open_guesses & open, const llama_token * drafts, int n_drafts, int n) {
    open.drafts.assign(drafts, drafts + n_drafts);
    open.guesses.resize(n);
    open.guesses.resize(pymtp_guess_next(text, earlier, drafts, n_drafts, n, open.guesses.data()));
    open.found.clear();
    for (const pymtp_guess & g : open.guesses) {
        open.found.push_back({g.token, rates.rate(g, odds)});
    }
}

std::vector<pymtp_text_drafts::guess> pymtp_text_drafts::next(int n) {
    double all_right = 1.0;
    for (const guess & g : first.found) {
        all_right *= g.chance;
    }
    if (first.found.size() == FINE_DEPTHS && n > FINE_DEPTHS && all_right > CHANCE_OF_MORE) {
        look_up(first, nullptr, 0, n);
    }
    return {first.found.begin(), first.found.begin() + std::min<size_t>(n, first.found.size())};
}

std::vector<pymtp_text_drafts::guess> pymtp_text_drafts::after(const llama_token * drafts, int n_drafts, int n) {
    look_up(second, drafts, n_drafts, n);
    return second.found;
}
