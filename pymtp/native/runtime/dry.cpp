#include "dry.h"

#include "pymtp.h"
#include "api_guard.h"
#include "model.h"

#include <algorithm>
#include <utility>

namespace {

// Length of a breaker in tokens, after its first one; the rest is not compared. As in llama.cpp, which thereby limits
// the time of a search.
constexpr size_t max_tail = 20;

// Returns a token's text, that of control tokens included.
std::string text_of(const llama_vocab * vocab, llama_token token) {
    std::string text(32, '\0');
    int32_t n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, true);
    if (n < 0) {
        text.resize(-n);
        n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, true);
    }
    text.resize(std::max(n, 0));
    return text;
}

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text) {
    std::vector<llama_token> tokens(text.size() + 1);
    const int32_t n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), false, false);
    tokens.resize(std::max(n, 0));
    return tokens;
}

} // namespace

pymtp_breaker_tokens::pymtp_breaker_tokens(const llama_vocab * vocab, const std::vector<std::string> & strings)
    : n_tokens(llama_vocab_n_tokens(vocab)) {
    whole.clear(n_tokens);
    std::vector<breaker> breakers;
    for (const std::string & string : strings) {
        breakers.push_back({string, std::vector<int32_t>(string.size(), -1)});
    }
    for (llama_token token = 0; token < n_tokens; ++token) {
        const std::string text = text_of(vocab, token);
        for (breaker & breaker : breakers) {
            if (text.find(breaker.text[0]) != std::string::npos) { // false for most tokens, and fast
                add(vocab, token, text, breaker);
            }
        }
    }
}

void pymtp_breaker_tokens::add(
        const llama_vocab * vocab, llama_token token, const std::string & text, breaker & breaker) {
    if (text.find(breaker.text) != std::string::npos) {
        whole.set(token, true);
        return;
    }
    for (size_t n = std::min(text.size(), breaker.text.size() - 1); n > 0; --n) {
        if (text.compare(text.size() - n, n, breaker.text, 0, n) != 0) {
            continue;
        }
        int32_t & rest = breaker.rests[n];
        if (rest < 0) {
            rest = index_of(vocab, breaker.text.substr(n));
        }
        std::vector<int32_t> & own = tails[token];
        if (!rests[rest].empty() && std::find(own.begin(), own.end(), rest) == own.end()) {
            own.push_back(rest);
        }
    }
}

// Returns the index of the first tokens of a text in `rests`.
int32_t pymtp_breaker_tokens::index_of(const llama_vocab * vocab, const std::string & rest) {
    std::vector<llama_token> tokens = tokenize(vocab, rest);
    tokens.resize(std::min(tokens.size(), max_tail));
    const auto found = std::find(rests.begin(), rests.end(), tokens);
    if (found != rests.end()) {
        return found - rests.begin();
    }
    rests.push_back(std::move(tokens));
    return rests.size() - 1;
}

size_t pymtp_breaker_tokens::match(const llama_token * tokens, size_t i, size_t n) const {
    size_t longest = whole.has(tokens[i]) ? 1 : 0;
    const auto found = tails.find(tokens[i]);
    if (found != tails.end()) {
        for (const int32_t index : found->second) {
            const std::vector<llama_token> & tail = rests[index];
            if (tail.size() >= longest && tail.size() < n - i &&
                    std::equal(tail.begin(), tail.end(), tokens + i + 1)) {
                longest = tail.size() + 1;
            }
        }
    }
    return longest;
}

const std::unordered_map<llama_token, int32_t> & pymtp_repetitions::find(
        const llama_token * tokens, size_t n, int32_t min_length, const pymtp_breaker_tokens * breakers) {
    lengths.clear();
    const size_t least = min_length;
    if (n <= least) {
        return lengths;
    }
    size_t limit = n; // number of tokens after the last breaker or image
    for (size_t i = n; i-- > 0; ) {
        if (const size_t n_breaker = tokens[i] < 0 ? 1 : breakers ? breakers->match(tokens, i, n) : 0) {
            limit = n - i - n_breaker;
            break;
        }
    }
    if (limit < least) {
        return lengths;
    }
    // common[k]: number of equal tokens before the end of the text, and before the token that is k tokens from its end.
    // Computed by the Z algorithm (D. Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, section 1.4) on
    // the reversed text, in a time that is linear in n.
    const auto reversed = [&](size_t i) { return tokens[n - 1 - i]; };
    common.assign(n, 0);
    size_t first = 0; // the text [first, end) is known to equal the text [0, end - first)
    size_t end   = 0;
    for (size_t k = 1; k < n; ++k) {
        size_t length = k < end ? std::min(end - k, common[k - first]) : 0;
        while (k + length < n && reversed(length) == reversed(k + length)) {
            ++length;
        }
        common[k] = length;
        if (k + length > end) {
            first = k;
            end   = k + length;
        }
        if (const size_t own = std::min(length, limit); own >= least && reversed(k - 1) >= 0) {
            int32_t & longest = lengths[reversed(k - 1)];
            longest = std::max<int32_t>(longest, own);
        }
    }
    return lengths;
}

pymtp_dry_breakers * pymtp_dry_breakers_init(const pymtp_model * model, const char * const * strings, int32_t n) {
    return pymtp_guarded<pymtp_dry_breakers *>(nullptr, [&] {
        const std::vector<std::string> all(strings, strings + n);
        return new pymtp_dry_breakers{
            std::make_shared<const pymtp_breaker_tokens>(llama_model_get_vocab(model->shared.get()), all)};
    });
}

void pymtp_dry_breakers_free(pymtp_dry_breakers * breakers) {
    delete breakers;
}
