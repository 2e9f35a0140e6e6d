#include "token_codepoints.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace {

// Reads the next byte of a text. Returns false when valid UTF-8 cannot have this byte at this place (The Unicode
// Standard, table 3-7), and for byte 0, which no grammar can name.
bool read_byte(uint8_t byte, pymtp_partial_utf8 & partial, std::vector<uint32_t> & codepoints) {
    if (partial.n_more == 0) {
        // Not a first byte: 80 to BF are continuation bytes, C0 and C1 would start overlong forms, and F5 to FF would
        // start characters beyond the last code point.
        if (byte == 0 || (byte >= 0x80 && byte < 0xC2) || byte > 0xF4) {
            return false;
        }
        const int n_more = byte < 0x80 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        partial = {n_more ? byte & (0x3Fu >> n_more) : byte, n_more};
    } else {
        const auto [first, last] = partial.range();
        const int shift = 6 * (partial.n_more - 1);
        if (byte < (0x80 | (first >> shift & 0x3F)) || byte > (0x80 | (last >> shift & 0x3F))) {
            return false;
        }
        partial = {partial.value << 6 | (byte & 0x3F), partial.n_more - 1};
    }
    if (partial.n_more == 0) {
        codepoints.push_back(partial.value);
        partial = {};
    }
    return true;
}

bool read_bytes(const std::string & bytes, pymtp_partial_utf8 & partial, std::vector<uint32_t> & codepoints) {
    return std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return read_byte(byte, partial, codepoints); });
}

// Returns whether a token is a marker of thinking or tool calls. In Qwen's files the markers are normal tokens; in some
// files of fine-tuned models they are control tokens, and would be missing from the text without special treatment.
bool is_mark(const char * text) {
    static constexpr std::array<std::string_view, 4> marks = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    return std::find(marks.begin(), marks.end(), text) != marks.end();
}

} // namespace

std::string pymtp_token_bytes(const llama_vocab * vocab, llama_token token) {
    const bool special = is_mark(llama_vocab_get_text(vocab, token));
    std::string text(64, '\0');
    int32_t n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, special);
    if (n < 0) {
        text.resize(-n);
        n = llama_token_to_piece(vocab, token, text.data(), text.size(), 0, special);
    }
    text.resize(std::max(n, 0));
    return text;
}

std::pair<uint32_t, uint32_t> pymtp_partial_utf8::range() const {
    uint32_t first = value << 6 * n_more;
    uint32_t last  = first | ((1u << 6 * n_more) - 1);
    if (n_more == 2) {
        first = value == 0x0 ? 0x800 : first; // lower values are overlong forms
        last  = value == 0xD ? 0xD7FF : last; // higher values are surrogates
    } else if (n_more == 3) {
        first = value == 0x0 ? 0x10000 : first;
        last  = value == 0x4 ? 0x10FFFF : last; // the last code point
    }
    return {first, last};
}

pymtp_token_codepoints::pymtp_token_codepoints(const llama_vocab * vocab) : vocab(vocab) {
    const llama_token n = llama_vocab_n_tokens(vocab);
    kinds.resize(n);
    rest.resize(n);
    offsets.push_back(0);
    for (llama_token token = 0; token < n; ++token) {
        const std::string bytes = pymtp_token_bytes(vocab, token);
        if (llama_vocab_is_eog(vocab, token)) {
            kinds[token] = END_OF_GENERATION;
            end_tokens.push_back(token);
        } else if (bytes.empty()) {
            kinds[token] = CONTROL;
        } else if (read_bytes(bytes, rest[token], codepoints)) {
            kinds[token] = TEXT;
            sorted.push_back(token);
        } else {
            kinds[token] = CONTINUATION;
            codepoints.resize(offsets.back());
            continuations.push_back(token);
        }
        offsets.push_back(codepoints.size());
    }
    const auto begin = [&](llama_token token) { return codepoints.begin() + offsets[token]; };
    const auto end   = [&](llama_token token) { return codepoints.begin() + offsets[token + 1]; };
    std::sort(sorted.begin(), sorted.end(), [&](llama_token a, llama_token b) {
        return std::lexicographical_compare(begin(a), end(a), begin(b), end(b));
    });
    shared.resize(sorted.size());
    for (size_t i = 1; i < sorted.size(); ++i) {
        const auto first = begin(sorted[i]);
        shared[i] = std::mismatch(first, end(sorted[i]), begin(sorted[i - 1]), end(sorted[i - 1])).first - first;
    }
}

bool pymtp_token_codepoints::decode(
        llama_token token, pymtp_partial_utf8 before, text & out, std::vector<uint32_t> & scratch) const {
    if (before.n_more == 0) {
        out = {codepoints.data() + offsets[token], codepoints.data() + offsets[token + 1], rest[token]};
        return kinds[token] == TEXT;
    }
    scratch.clear();
    if (!read_bytes(pymtp_token_bytes(vocab, token), before, scratch)) {
        return false;
    }
    out = {scratch.data(), scratch.data() + scratch.size(), before};
    return true;
}
