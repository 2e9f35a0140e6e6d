#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace {

constexpr size_t block          = 256; // logits looked at together before the candidates are
constexpr size_t min_candidates = 16;  // to tell how sure it is; greedy itself needs one
constexpr size_t spare          = 8;   // candidates beyond the k-th: a device takes any of those that tie at its last place
constexpr size_t tried          = 256; // candidates that a grammar looks at before it looks at the whole vocabulary

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and Random123.
// The first two of the four words, for the counter {token, position, 0, 0}.
uint64_t philox(uint32_t token, uint32_t position, uint64_t seed) {
    uint32_t c[4] = {token, position, 0, 0};
    uint32_t k[2] = {(uint32_t) seed, (uint32_t) (seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t) c[0] * 0xD2511F53u;
        const uint64_t b = (uint64_t) c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t) (b >> 32) ^ c[1] ^ k[0], (uint32_t) b, (uint32_t) (a >> 32) ^ c[3] ^ k[1], (uint32_t) a};
        std::copy(next, next + 4, c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return ((uint64_t) c[0] << 20) + (c[1] >> 12);
}

double gumbel(llama_token token, int64_t position, uint64_t seed) {
    // 52 bits, moved by a half so that neither 0 nor 1 comes out
    const double uniform = ((double) philox((uint32_t) token, (uint32_t) position, seed) + 0.5) * 0x1p-52;
    return -std::log(-std::log(uniform));
}

// The sum of exp(logit - most), to 1e-6 of itself: 5e-7 for the difference of two floats, 2e-7 for the rest.
//
// With x = q ln 2 + r and |r| <= ln 2 / 2, in two steps (W. J. Cody and W. Waite, "Software Manual for the Elementary
// Functions", 1980, chapter 6), exp(x) is 2^q times Taylor's series of exp(r), of which 6e-9 is left after r^7. No call and
// no branch, so that compilers make vectors of it: the library's exp takes one number at a time.
double sum_of_exp(const float * logits, size_t n, float most) {
    constexpr float least   = -87.0f;          // about where floats lose digits: what is less counts as that
    constexpr float shift   = 0x1.8p23f;       // rounds to a whole number what it is added to
    constexpr float ln2     = 0x1.62ep-1f;     // of few bits, so that its product with q is exact
    constexpr float ln2_low = 0x1.0bfbe8p-15f; // the rest of it
    double sums[8] = {};
    for (size_t start = 0; start < n; start += block) {
        float x[block], y[block];
        const size_t here = std::min(block, n - start);
        for (size_t i = 0; i < here; ++i) {
            const float difference = logits[start + i] - most;
            x[i] = difference < least ? least : difference;
        }
        std::fill(x + here, x + block, least);
        for (size_t i = 0; i < block; ++i) {
            const float shifted = x[i] * 0x1.715476p0f + shift;
            const float q = shifted - shift;
            const float r = (x[i] - q * ln2) - q * ln2_low;
            float sum = 1.0f/5040;
            sum = sum * r + 1.0f/720;
            sum = sum * r + 1.0f/120;
            sum = sum * r + 1.0f/24;
            sum = sum * r + 1.0f/6;
            sum = sum * r + 1.0f/2;
            sum = sum * r + 1.0f;
            sum = sum * r + 1.0f;
            uint32_t bits; // they end with q, which becomes the exponent
            std::memcpy(&bits, &shifted, sizeof(bits));
            bits = (bits + 127) << 23;
            float power;
            std::memcpy(&power, &bits, sizeof(power));
            y[i] = sum * power;
        }
        for (size_t i = 0; i < block; i += 8) {
            for (size_t j = 0; j < 8; ++j) {
                sums[j] += y[i + j];
            }
        }
    }
    return std::accumulate(sums, sums + 8, 0.0);
}

struct summary {
    float most;
    bool  nan; // one of them is not a number: most means nothing
};

// As whole numbers in the same order, so that compilers make vectors of it: floats they must compare one after the other.
summary summarize(const float * logits, size_t n) {
    int32_t most = INT32_MIN;
    int32_t nans = 0;
    for (size_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, logits + i, sizeof(bits));
        nans += (bits & INT32_MAX) > 0x7f800000;
        bits ^= (bits >> 31) & INT32_MAX; // the less a negative number is, the greater are its bits
        most = bits > most ? bits : most;
    }
    most ^= (most >> 31) & INT32_MAX;
    float logit;
    std::memcpy(&logit, &most, sizeof(logit));
    return {logit, nans != 0};
}

bool before(const pymtp_candidate & a, const pymtp_candidate & b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

} // namespace

pymtp_sampler::pymtp_sampler(const pymtp_sampling & params, int32_t n_vocab)
    : params(params), bias(params.bias, params.bias + params.n_bias), n_vocab(n_vocab) {
    this->params.bias    = nullptr;
    this->params.grammar = nullptr;
    if (params.grammar) {
        grammar = std::make_unique<pymtp_grammar_walk>(*params.grammar);
    }
}

void pymtp_sampler::begin(size_t n) {
    if (grammar) {
        grammar->begin(n - std::min<size_t>(n, params.n_grammar_prefix));
    }
}

bool pymtp_sampler::penalizes() const {
    return params.penalty_last_n != 0 &&
        (params.repeat_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f);
}

size_t pymtp_sampler::enough(bool draft) const {
    if (!bias.empty() || penalizes() || grammar || (!draft && params.n_logprobs >= 0)) {
        return 0;
    }
    if (params.temperature == 0.0 || params.top_k == 1) {
        return 1;
    }
    const size_t n = std::max<size_t>(params.top_k, min_candidates) + spare;
    return params.top_k > 0 && n <= PYMTP_MOST_CANDIDATES ? std::min<size_t>(n, n_vocab) : 0;
}

// The logits after bias and penalties: the row itself where there are none.
const float * pymtp_sampler::adjust(const float * logits, const llama_token * prefix, size_t n) {
    if (bias.empty() && !penalizes()) {
        return logits;
    }
    adjusted.assign(logits, logits + n_vocab);
    for (const auto & [token, value] : bias) {
        adjusted[token] += value;
    }
    if (penalizes()) {
        const size_t last = params.penalty_last_n < 0 ? n : std::min<size_t>(n, params.penalty_last_n);
        std::unordered_map<llama_token, int> counts;
        for (size_t i = n - last; i < n; ++i) {
            counts[prefix[i]]++;
        }
        for (const auto & [token, count] : counts) {
            float & logit = adjusted[token];
            // as llama.cpp: dividing a negative logit would reward the token
            logit = logit <= 0.0f ? logit * params.repeat_penalty : logit / params.repeat_penalty;
            logit -= count * params.frequency_penalty + params.presence_penalty;
        }
    }
    return adjusted.data();
}

// The k most likely, in order. False when a logit is not a number.
bool pymtp_sampler::select(const float * logits, size_t k) {
    candidates.clear();
    bool numbers = true;
    for (size_t start = 0; start < (size_t) n_vocab; start += block) {
        const size_t end = std::min(start + block, (size_t) n_vocab);
        const auto [most, nan] = summarize(logits + start, end - start);
        numbers &= !nan;
        // a later token that only ties with the least of k does not replace it: the lower id wins
        if (candidates.size() == k && !(most > candidates.front().logit)) {
            continue;
        }
        for (size_t i = start; i < end; ++i) {
            const pymtp_candidate candidate = {(llama_token) i, logits[i]};
            if (candidates.size() < k) {
                candidates.push_back(candidate);
                std::push_heap(candidates.begin(), candidates.end(), before);
            } else if (candidate.logit > candidates.front().logit) {
                std::pop_heap(candidates.begin(), candidates.end(), before);
                candidates.back() = candidate;
                std::push_heap(candidates.begin(), candidates.end(), before);
            }
        }
    }
    std::sort_heap(candidates.begin(), candidates.end(), before);
    return numbers && std::isfinite(candidates.front().logit);
}

// The k most likely of tokens that hold them, in order. False as above.
bool pymtp_sampler::take(const pymtp_logits & from, size_t k) {
    candidates.clear();
    for (size_t i = 0; i < from.n; ++i) {
        if (std::isnan(from.values[i])) {
            return false;
        }
        candidates.push_back({from.ids[i], from.values[i]});
    }
    std::sort(candidates.begin(), candidates.end(), before);
    candidates.resize(std::min(candidates.size(), k));
    return std::isfinite(candidates.front().logit);
}

// The k most likely of those that the grammar allows, in order, at least some of them: those among the most likely that
// are looked at first are the same. False when there is none, and when a logit is not a number.
bool pymtp_sampler::select_allowed(const float * logits, size_t least, size_t k) {
    const auto drop = [&](auto refused) {
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), refused), candidates.end());
        candidates.resize(std::min(candidates.size(), k));
    };
    if (k < (size_t) n_vocab) {
        if (!select(logits, std::min<size_t>(std::max(k, tried), n_vocab))) {
            return false;
        }
        tokens.clear();
        for (const pymtp_candidate & candidate : candidates) {
            tokens.push_back(candidate.id);
        }
        grammar->allowed(tokens, verdicts);
        size_t i = 0;
        drop([&](const pymtp_candidate & candidate) { return !verdicts[i++] || candidate.logit == -INFINITY; });
        if (candidates.size() >= least) {
            return true;
        }
    }
    const std::vector<bool> & all = grammar->all_allowed();
    k = std::min<size_t>(k, std::count(all.begin(), all.end(), true));
    if (k == 0) {
        return false;
    }
    masked.resize(n_vocab);
    for (size_t i = 0; i < (size_t) n_vocab; ++i) {
        masked[i] = all[i] ? logits[i] : -INFINITY;
    }
    if (!select(masked.data(), k)) {
        return false;
    }
    drop([](const pymtp_candidate & candidate) { return candidate.logit == -INFINITY; });
    return true;
}

// How many candidates top-k, top-p and min-p leave.
size_t pymtp_sampler::filter() {
    size_t n = params.top_k > 0 ? std::min<size_t>(params.top_k, candidates.size()) : candidates.size();
    if (params.top_p < 1.0) {
        double total = 0.0;
        for (size_t i = 0; i < n; ++i) {
            total += weights[i];
        }
        double sum = 0.0;
        size_t kept = 0;
        while (kept < n) {
            sum += weights[kept++];
            if (sum >= params.top_p * total) {
                break;
            }
        }
        n = kept;
    }
    if (params.min_p > 0.0) {
        while (n > 1 && weights[n - 1] < params.min_p) {
            --n;
        }
    }
    return n;
}

pymtp_sampler::result pymtp_sampler::sample(
        const pymtp_logits & from, int64_t position, const llama_token * prefix, size_t n, bool confidence) {
    const bool greedy = params.temperature == 0.0;
    const size_t sure = confidence ? min_candidates : 1;
    const size_t wanted = greedy ? sure : params.top_k > 0 ? std::max<size_t>(params.top_k, sure) : n_vocab;
    const size_t k = std::min<size_t>(wanted, n_vocab);
    const size_t least = greedy ? 1 : params.top_k > 0 ? std::min<size_t>(params.top_k, n_vocab) : k;
    if (from.ids) {
        if (!take(from, k)) {
            return {};
        }
    } else {
        const float * logits = adjust(from.values, prefix, n);
        const bool allowed = !grammar || (grammar->go_to(prefix, n) && select_allowed(logits, least, k));
        if ((!grammar || !allowed) && !select(logits, k)) {
            return {};
        }
        if (!allowed) {
            return {candidates[0].id, 0.0f, false};
        }
    }
    if (candidates.empty()) { // a mistake above must not become a token that is none
        return {};
    }
    weights.resize(candidates.size());
    double total = 0.0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        weights[i] = std::exp((double) candidates[i].logit - candidates[0].logit);
        total += weights[i];
    }
    size_t best = 0;
    if (!greedy) {
        const size_t kept = filter();
        double most = -INFINITY;
        for (size_t i = 0; i < kept; ++i) {
            const double score = candidates[i].logit / params.temperature + gumbel(candidates[i].id, position, params.seed);
            if (score > most) {
                most = score;
                best = i;
            }
        }
    }
    return {candidates[best].id, (float) (weights[best] / total)};
}

void pymtp_sampler::report(const float * logits, llama_token token, std::vector<pymtp_logprob> & out) {
    if (params.n_logprobs < 0) {
        return;
    }
    select(logits, std::min<size_t>(std::max(params.n_logprobs, 1), n_vocab));
    const float most = candidates[0].logit;
    const double normalizer = most + std::log(sum_of_exp(logits, n_vocab, most));
    out.push_back({token, logits[token] - normalizer});
    for (size_t i = 0; i < std::min<size_t>(params.n_logprobs, candidates.size()); ++i) {
        out.push_back({candidates[i].id, candidates[i].logit - normalizer});
    }
}
