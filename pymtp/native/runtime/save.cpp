// Saves sequences to host memory and loads them: K and V token by token, and the state that a sequence continues from.
#include "compare/faults.h"
#include "callbacks.h"
#include "pair.h"

#include "pymtp_context.h"

#include <cstring>

namespace {

// The header of a saved state. After it come the state of the recurrent layers, the hidden state that the next token is
// combined with, and the logits of the last token; the latter two may be absent.
struct state_header {
    char     mark[8];
    int32_t  n_tokens;
    int32_t  n_replay;
    int32_t  has_row;
    int32_t  has_logits;
    uint64_t tokens; // digest of the tokens, see digest_of()
};
static_assert(sizeof(state_header) == 32, "there is no padding between the fields");

constexpr char state_mark[8] = {'p', 'y', 'm', 't', 'p', ' ', 's', '1'};

// Returns a digest that detects a state saved for other tokens: FNV-1a, over 32 bits at a time.
uint64_t digest_of(const llama_token * tokens, int32_t n) {
    uint64_t digest = 14695981039346656037u;
    for (int32_t i = 0; i < n; ++i) {
        digest = (digest ^ (uint32_t) tokens[i])*1099511628211u;
    }
    return digest;
}

int report_cancelled() {
    pymtp_set_error("cancelled");
    return PYMTP_CANCELLED;
}

} // namespace

bool pymtp_pair::check_range(const char * what, int32_t first, int32_t n, int32_t limit) const {
    if (first >= 0 && n >= 0 && first <= limit && n <= limit - first) {
        return true;
    }
    pymtp_set_error("tokens " + std::to_string(first) + " to " + std::to_string((int64_t) first + n) +
            " are not within the " + std::to_string(limit) + " tokens " + what);
    return false;
}

// Checks that n tokens from `first` on can be staged: the sequence must be empty, and all tokens before `first` must be
// staged. If not, sets the error message and returns false.
bool pymtp_pair::check_staging(int32_t seq, int32_t first, int32_t n) const {
    const pymtp_sequence & s = sequences[seq];
    if (s.n_past > 0 || s.n_drafted > 0) {
        pymtp_set_error("sequence " + std::to_string(seq) + " holds " + std::to_string(s.n_past) +
                " tokens and is not empty");
        return false;
    }
    if (first > s.n_staged) {
        pymtp_set_error("K and V of " + std::to_string(s.n_staged) + " tokens were put into sequence " +
                std::to_string(seq) + ", those of token " + std::to_string(first) + " would leave a gap");
        return false;
    }
    return check_range("that a sequence has room for", first, n, n_ctx);
}

size_t pymtp_pair::cell_bytes() const {
    return pymtp_cell_bytes(target.get()) + (draft ? pymtp_cell_bytes(draft.get()) : 0);
}

size_t pymtp_pair::max_state_bytes() const {
    return sizeof(state_header) + pymtp_state_bytes(target.get(), pymtp_max_to_replay(target.get())) +
        ((draft ? n_embd : 0) + n_vocab)*sizeof(float);
}

pymtp_cell_format pymtp_pair::cell_format() const {
    const pymtp_kv_format kv = pymtp_get_kv_format(target.get());

    pymtp_cell_format format = {{}, {}, kv.flash_attn, draft != nullptr, (int32_t) llama_n_ubatch(target.get()),
            options.prefill, {}};
    std::strncpy(format.type_k, ggml_type_name(kv.type_k), sizeof(format.type_k) - 1);
    std::strncpy(format.type_v, ggml_type_name(kv.type_v), sizeof(format.type_v) - 1);
    std::strncpy(format.weights, pymtp_weight_buffers(target.get()).c_str(), sizeof(format.weights) - 1);
    return format;
}

int pymtp_pair::begin_save(int32_t seq, int32_t first, int32_t n) {
    return check_range("that the sequence holds", first, n, sequences[seq].n_past) ? prepare_save(seq)
            : (int) PYMTP_INVALID;
}

int pymtp_pair::save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data) {
    const size_t stride = cell_bytes();
    if (!pymtp_save_cells(target.get(), seq, first, n, data, stride) ||
            (draft && !pymtp_save_cells(draft.get(), seq, first, n, data + pymtp_cell_bytes(target.get()), stride))) {
        return report_cancelled();
    }
    counters.saved_bytes += stride*n;
    return PYMTP_OK;
}

int pymtp_pair::load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data) {
    if (!check_staging(seq, first, n)) {
        return PYMTP_INVALID;
    }
    const size_t stride = cell_bytes();
    if (!pymtp_load_cells(target.get(), seq, first, n, data, stride)) {
        return report_cancelled();
    }
    pymtp_fault_in_copy(*this);
    if (draft && !pymtp_load_cells(draft.get(), seq, first, n, data + pymtp_cell_bytes(target.get()), stride)) {
        return report_cancelled();
    }
    sequences[seq].n_staged = first + n;
    counters.loaded_bytes += stride*n;
    return PYMTP_OK;
}

int pymtp_pair::copy_cells(int32_t from, int32_t to, int32_t first, int32_t n) {
    if (from == to) {
        pymtp_set_error("K and V go to another sequence");
        return PYMTP_INVALID;
    }
    if (!check_staging(to, first, n)) {
        return PYMTP_INVALID;
    }
    const int64_t n_target = pymtp_copy_cells(target.get(), from, to, first, n);
    if (n_target < 0) {
        return report_cancelled();
    }
    pymtp_fault_in_copy(*this);
    const int64_t n_draft = draft ? pymtp_copy_cells(draft.get(), from, to, first, n) : 0;
    if (n_draft < 0) {
        return report_cancelled();
    }
    sequences[to].n_staged = first + n;
    counters.sequence_bytes += n_target + n_draft;
    return PYMTP_OK;
}

int pymtp_pair::retain_cells(int32_t seq, int32_t n) {
    if (int status = begin_save(seq, 0, n)) {
        return status;
    }
    if (n > 0 && (!pymtp_has_cells_in_order(target.get(), seq, n) ||
            (draft && !pymtp_has_cells_in_order(draft.get(), seq, n)))) {
        pymtp_set_error("the tokens are not in the first cells of their sequence");
        return PYMTP_FAILED;
    }
    sequences[seq].n_staged = n; // set before clear() as well, so that it does not zero the retained cells
    clear(seq);
    sequences[seq].n_staged = n;
    return PYMTP_OK;
}

int pymtp_pair::begin_save_state(int32_t seq, bool with_logits, size_t * needed) {
    const pymtp_sequence & s = sequences[seq];
    if (s.n_past == 0) {
        pymtp_set_error("sequence " + std::to_string(seq) + " holds no tokens");
        return PYMTP_INVALID;
    }
    if (int status = prepare_save(seq)) {
        return status;
    }
    *needed = sizeof(state_header) + pymtp_state_bytes(target.get(), pymtp_n_to_replay(target.get(), seq, s.n_past));
    *needed += draft ? n_embd*sizeof(float) : 0;
    *needed += with_logits && s.first_logits ? n_vocab*sizeof(float) : 0;
    return PYMTP_OK;
}

int pymtp_pair::save_state(int32_t seq, bool with_logits, uint8_t * data) {
    const pymtp_sequence & s = sequences[seq];

    state_header header = {};
    std::memcpy(header.mark, state_mark, sizeof(state_mark));
    header.n_tokens   = s.n_past;
    header.n_replay   = pymtp_n_to_replay(target.get(), seq, s.n_past);
    header.has_row    = draft != nullptr;
    header.has_logits = with_logits && s.first_logits;
    header.tokens     = digest_of(s.tokens.data(), s.n_past);

    uint8_t * pos = data;
    std::memcpy(pos, &header, sizeof(header));
    pos += sizeof(header);
    if (!pymtp_save_state(target.get(), seq, s.n_past, pos)) {
        return report_cancelled();
    }
    pos += pymtp_state_bytes(target.get(), header.n_replay);
    if (draft) {
        std::vector<float> row(n_embd);
        if (host_hidden->holds(seq)) {
            std::memcpy(row.data(), host_hidden->last_row(seq), n_embd*sizeof(float));
        } else {
            pymtp_get_pending_hidden(target.get(), seq, s.n_past, row.data());
        }
        std::memcpy(pos, row.data(), n_embd*sizeof(float));
        pos += n_embd*sizeof(float);
    }
    if (header.has_logits) {
        std::memcpy(pos, s.first_logits, n_vocab*sizeof(float));
        pos += n_vocab*sizeof(float);
    }
    counters.saved_bytes += pos - data;
    return PYMTP_OK;
}

// Reads the header of a saved state. If the state does not fit the pair and the tokens, sets the error message and
// returns false.
static bool read_header(const pymtp_pair & pair, state_header & header, const llama_token * tokens, int32_t n,
        const uint8_t * data, size_t size) {
    std::string error;
    if (size >= sizeof(header)) {
        std::memcpy(&header, data, sizeof(header));
    }
    llama_context * target     = pair.target.get();
    const int32_t   max_replay = pymtp_max_to_replay(target);
    if (n < 1) {
        error = "a state is of at least one token";
    } else if (size < sizeof(header) || std::memcmp(header.mark, state_mark, sizeof(state_mark)) != 0) {
        error = "these bytes are no state";
    } else if (header.n_tokens != n || header.tokens != digest_of(tokens, n)) {
        error = "the state is of " + std::to_string(header.n_tokens) + " tokens, and not of these";
    } else if (header.has_row != (pair.draft ? 1 : 0)) {
        error = pair.draft ? "the state was saved without drafts"
                : "the state was saved with drafts, and there are none here";
    } else if (header.n_replay < 0 || header.n_replay > max_replay) {
        error = "the state has " + std::to_string(header.n_replay) + " tokens to replay, and there is room for " +
            std::to_string(max_replay) + ": it needs more draft_tokens";
    } else if (header.n_replay > n) {
        error = "the state has " + std::to_string(header.n_replay) + " tokens to replay, of " + std::to_string(n);
    } else {
        const size_t expected_size = sizeof(header) + pymtp_state_bytes(target, header.n_replay) +
            (header.has_row ? pair.n_embd*sizeof(float) : 0) + (header.has_logits ? pair.n_vocab*sizeof(float) : 0);
        if (size != expected_size) {
            error = "the state has " + std::to_string(size) + " bytes, it must have " + std::to_string(expected_size);
        }
    }
    if (!error.empty()) {
        pymtp_set_error(error);
    }
    return error.empty();
}

int pymtp_pair::check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size,
        bool * logits) const {
    state_header header;
    if (!check_tokens(tokens, n) || !read_header(*this, header, tokens, n, data, size)) {
        return PYMTP_INVALID;
    }
    *logits = header.has_logits != 0;
    return PYMTP_OK;
}

int pymtp_pair::load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) {
    state_header header;
    if (!check_staging(seq, 0, n) || !check_tokens(tokens, n) || !read_header(*this, header, tokens, n, data, size)) {
        return PYMTP_INVALID;
    }
    const int32_t n_staged = sequences[seq].n_staged;
    if (n_staged < n) {
        pymtp_set_error("K and V of " + std::to_string(n_staged) + " tokens were put into the sequence, not of " +
                std::to_string(n));
        return PYMTP_INVALID;
    }
    clear(seq); // drops hidden states on the host and logits that the sequence has kept from its earlier tokens
    pymtp_sequence & s = sequences[seq];
    s.n_staged = n_staged;

    const uint8_t * pos = data + sizeof(header);
    if (!pymtp_load_state(target.get(), seq, tokens, n, header.n_replay, pos)) {
        return report_cancelled();
    }
    pos += pymtp_state_bytes(target.get(), header.n_replay);
    pymtp_fault_in_copy(*this);
    if (draft) {
        pymtp_load_state(draft.get(), seq, tokens, n, 0, nullptr);
        std::vector<float> row(n_embd);
        std::memcpy(row.data(), pos, n_embd*sizeof(float));
        pos += n_embd*sizeof(float);
        if (is_fused()) {
            pymtp_set_pending_hidden(target.get(), seq, n, row.data());
        } else {
            host_hidden->set_last_row(seq, row.data());
        }
        s.n_head = n;
    }
    if (header.has_logits) {
        s.copied_logits.resize(n_vocab);
        std::memcpy(s.copied_logits.data(), pos, n_vocab*sizeof(float));
        s.first_logits = s.copied_logits.data();
    }
    s.n_past   = n;
    s.n_staged = 0;
    s.tokens.assign(tokens, tokens + n);
    observe_text(tokens, n);
    counters.loaded_bytes += size;
    return PYMTP_OK;
}
