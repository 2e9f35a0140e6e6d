#include "text_index.h"

#include "tuning.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

using namespace pymtp_tuning;

namespace {

uint32_t hash_of(const llama_token * gram, size_t n) {
    uint64_t hash = 0;
    for (size_t i = 0; i < n; ++i) {
        hash = (hash + (uint32_t) gram[i]) * 0x9E3779B97F4A7C15; // 2^64 divided by the golden ratio (Knuth)
    }
    return hash >> 32;
}

// Reserves room for n more items. Capacities grow by a quarter: doubling would leave half of the memory unused.
template <typename T> void make_room(std::vector<T> & items, size_t n) {
    if (items.capacity() < items.size() + n) {
        items.reserve(std::max(items.size() + n, items.capacity() + items.capacity() / 4));
    }
}

} // namespace

bool pymtp_ngrams::is_at(const std::vector<llama_token> & tokens, uint32_t end, const llama_token * gram) const {
    return std::equal(gram, gram + n, tokens.data() + end - n);
}

// Returns the slot of an n-gram; if it has none, an empty slot or, after TABLE_TRIES, the slot of another n-gram. The
// latter is rare unless somebody chooses tokens so that many n-grams have one hash; the other n-gram is then forgotten.
size_t pymtp_ngrams::find_slot(const std::vector<llama_token> & tokens, const llama_token * gram) const {
    return probe(gram, [&](uint32_t end) { return is_at(tokens, end, gram); });
}

// Returns the first of the slots for an n-gram that is empty or whose occurrence is `fine`, or the last one tried.
template <typename F> size_t pymtp_ngrams::probe(const llama_token * gram, F && fine) const {
    size_t slot = (uint64_t) hash_of(gram, n) * slots.size() >> 32;
    for (int i = 1; i < TABLE_TRIES && slots[slot] && !fine(slots[slot]); ++i) {
        slot = slot + 1 < slots.size() ? slot + 1 : 0;
    }
    return slot;
}

void pymtp_ngrams::reserve(const std::vector<llama_token> & tokens, size_t n_new) {
    make_room(previous, n_new);
    const size_t needed = (used + n_new) / TABLE_LOAD + 1;
    if (needed <= slots.size()) {
        return;
    }
    std::vector<uint32_t> old(std::max<size_t>(needed, slots.size() * TABLE_GROWTH));
    slots.swap(old);
    used = 0;
    for (const uint32_t end : old) {
        if (end) { // no other slot has this n-gram, so that nothing is compared
            uint32_t & slot = slots[probe(tokens.data() + end - n, [](uint32_t) { return false; })];
            used += slot == 0;
            slot = std::max(slot, end);
        }
    }
}

void pymtp_ngrams::add(const std::vector<llama_token> & tokens, uint32_t end) noexcept {
    previous.push_back(0);
    if (end >= n) {
        const llama_token * gram = tokens.data() + end - n;
        uint32_t & slot = slots[find_slot(tokens, gram)];
        used += slot == 0;
        previous.back() = slot && is_at(tokens, slot, gram) ? slot : 0;
        slot = end;
    }
}

uint32_t pymtp_ngrams::last(const std::vector<llama_token> & tokens, const llama_token * gram) const {
    if (slots.empty()) {
        return 0;
    }
    const uint32_t end = slots[find_slot(tokens, gram)];
    return end && is_at(tokens, end, gram) ? end : 0;
}

pymtp_text_end::pymtp_text_end(const std::vector<llama_token> & text, const llama_token * drafts, size_t n_drafts) {
    const size_t n_max = std::min(MAX_LENGTH, text.size() + n_drafts);
    for (; n < n_max; ++n) {
        const llama_token token = n < n_drafts ? drafts[n_drafts - 1 - n] : text[text.size() - 1 - (n - n_drafts)];
        if (token == LLAMA_TOKEN_NULL) {
            break;
        }
        tokens[MAX_LENGTH - 1 - n] = token;
    }
}

pymtp_text::pymtp_text() : ngrams{pymtp_ngrams(LONG_GRAM), pymtp_ngrams(SHORT_GRAM)} {}

void pymtp_text::add(const llama_token * tokens, size_t n) {
    if (n > UINT32_MAX - all.size()) {
        throw std::length_error("a text has at most 4,294,967,295 tokens");
    }
    make_room(all, n);
    for (pymtp_ngrams & grams : ngrams) {
        grams.reserve(all, n);
    }
    for (size_t i = 0; i < n; ++i) {
        all.push_back(std::max(tokens[i], LLAMA_TOKEN_NULL)); // an image separates two texts
        for (pymtp_ngrams & grams : ngrams) {
            grams.add(all, all.size());
        }
    }
}

void pymtp_text::keep_last(size_t n) {
    if (n < all.size()) {
        pymtp_text kept;
        kept.add(all.data() + all.size() - n, n);
        *this = std::move(kept);
    }
}

size_t pymtp_text::bytes() const {
    size_t n = sizeof(*this) + all.capacity() * sizeof(llama_token);
    for (const pymtp_ngrams & grams : ngrams) {
        n += grams.bytes();
    }
    return n;
}

void pymtp_text::find(const pymtp_text_end & end, size_t limit, std::vector<pymtp_occurrence> & found) const {
    const size_t n_before = found.size();
    for (const pymtp_ngrams & grams : ngrams) {
        if (end.size() < grams.length()) {
            continue;
        }
        uint32_t at = grams.last(all, end.last(grams.length()));
        for (int i = 0; at && i < MAX_CANDIDATES; ++i, at = grams.before(at)) {
            if (at >= limit || (at < all.size() && all[at] == LLAMA_TOKEN_NULL)) {
                continue;
            }
            size_t length = grams.length();
            while (length < std::min<size_t>(end.size(), at) && all[at - 1 - length] == *end.last(length + 1)) {
                ++length;
            }
            found.push_back({this, at, length});
        }
        if (found.size() > n_before) {
            return;
        }
    }
}

namespace {

size_t longest_of(const std::vector<pymtp_occurrence> & occurrences) {
    size_t longest = 0;
    for (const pymtp_occurrence & occurrence : occurrences) {
        longest = std::max(longest, occurrence.length);
    }
    return longest;
}

// Removes the items whose index `drop` is true of.
template <typename F> void remove_at(std::vector<pymtp_occurrence> & items, F && drop) {
    size_t n = 0;
    for (size_t k = 0; k < items.size(); ++k) {
        if (!drop(k)) {
            items[n++] = items[k];
        }
    }
    items.resize(n);
}

// Returns the token with the most votes, and their number. votes: one of each voter
std::pair<llama_token, int32_t> most_frequent(
        const std::vector<pymtp_occurrence> & voters, const std::vector<llama_token> & votes) {
    std::pair<llama_token, int32_t> best = {votes[0], 0};
    size_t  best_length = 0;
    int32_t n_left      = votes.size(); // number of votes that are not counted yet
    for (size_t k = 0; k < votes.size() && n_left >= best.second; ++k) {
        if (std::find(votes.begin(), votes.begin() + k, votes[k]) != votes.begin() + k) {
            continue; // counted with an earlier voter
        }
        int32_t n      = 0;
        size_t  length = 0; // the longest match of this token's voters
        for (size_t m = k; m < votes.size(); ++m) {
            if (votes[m] == votes[k]) {
                ++n;
                length = std::max(length, voters[m].length);
            }
        }
        n_left -= n;
        if (n > best.second || (n == best.second && length > best_length)) {
            best        = {votes[k], n};
            best_length = length;
        }
    }
    return best;
}

} // namespace

size_t pymtp_guess_next(
        const pymtp_text & text, const pymtp_text * other, const llama_token * drafts, size_t n_drafts, size_t n_max,
        pymtp_guess * guesses) {
    const pymtp_text_end end(text.tokens(), drafts, n_drafts);
    std::vector<pymtp_occurrence> voters;
    voters.reserve(2 * MAX_CANDIDATES);
    text.find(end, text.size() + n_drafts, voters);
    if (other) {
        other->find(end, other->size(), voters);
    }
    const size_t longest = longest_of(voters);
    remove_at(voters, [&](size_t k) { return voters[k].length < VOTER_SHARE * longest; });

    // The token that an occurrence has at guess i. An occurrence in the text may continue into the drafts and guesses.
    const auto vote = [&](const pymtp_occurrence & voter, size_t i) -> llama_token {
        const size_t at = voter.next + i;
        if (at < voter.in->size()) {
            return voter.in->tokens()[at];
        }
        if (voter.in != &text) {
            return LLAMA_TOKEN_NULL;
        }
        const size_t after = at - text.size();
        return after < n_drafts ? drafts[after] : guesses[after - n_drafts].token;
    };
    std::vector<llama_token> votes;
    votes.reserve(voters.size());
    size_t i = 0;
    for (; i < n_max; ++i) {
        votes.clear();
        remove_at(voters, [&](size_t k) {
            const llama_token token = vote(voters[k], i);
            if (token != LLAMA_TOKEN_NULL) {
                votes.push_back(token);
            }
            return token == LLAMA_TOKEN_NULL;
        });
        if (voters.empty()) {
            break;
        }
        const auto [token, n] = most_frequent(voters, votes);
        guesses[i] = {token, (int32_t) (longest_of(voters) + i), n, (int32_t) voters.size()};
        if (n < guesses[i].of) {
            remove_at(voters, [&](size_t k) { return votes[k] != guesses[i].token; });
        }
    }
    return i;
}
