// What sequences hold, to the host's memory and from there: K and V by tokens, and the state that a text goes on from.
#include "compare/faults.h"
#include "host.h"
#include "pair.h"

#include "pymtp_context.h"

#include <cstring>

namespace {

// A state begins with this. Then: what the recurrent layers go on from, the hidden state that the next token goes with, and
// the logits of the last token.
struct state_header {
    char     mark[8];
    int32_t  n_tokens;
    int32_t  n_replay;
    int32_t  has_row;
    int32_t  has_logits;
    uint64_t tokens; // see digest_of
};
static_assert(sizeof(state_header) == 32, "there is nothing between the fields");

constexpr char state_mark[8] = {'p', 'y', 'm', 't', 'p', ' ', 's', '1'};

// Tells texts apart that were mixed up: FNV-1a, 32 bits at a time.
uint64_t digest_of(const llama_token * tokens, int32_t n) {
    uint64_t digest = 14695981039346656037u;
    for (int32_t i = 0; i < n; ++i) {
        digest = (digest ^ (uint32_t) tokens[i])*1099511628211u;
    }
    return digest;
}

int say_cancelled() {
    pymtp_set_error("cancelled");
    return PYMTP_CANCELLED;
}

} // namespace

bool pymtp_pair::check_range(const char * what, int32_t first, int32_t n, int32_t most) const {
    if (first >= 0 && n >= 0 && first <= most && n <= most - first) {
        return true;
    }
    pymtp_set_error("tokens " + std::to_string(first) + " to " + std::to_string((int64_t) first + n) + " are not within the " +
            std::to_string(most) + " tokens " + what);
    return false;
}

// K and V can be put into a sequence that holds no tokens, after those that were put there.
bool pymtp_pair::check_stage(int32_t seq, int32_t first, int32_t n) const {
    const pymtp_sequence & s = sequences[seq];
    if (s.n_past > 0 || s.n_chain > 0) {
        pymtp_set_error("sequence " + std::to_string(seq) + " holds " + std::to_string(s.n_past) + " tokens and is not empty");
        return false;
    }
    if (first > s.n_staged) {
        pymtp_set_error("K and V of " + std::to_string(s.n_staged) + " tokens were put into sequence " + std::to_string(seq) +
                ", those of token " + std::to_string(first) + " would leave a gap");
        return false;
    }
    return check_range("that a sequence has room for", first, n, n_ctx);
}

size_t pymtp_pair::cell_bytes() const {
    return pymtp_cell_bytes(target.get()) + (draft ? pymtp_cell_bytes(draft.get()) : 0);
}

size_t pymtp_pair::most_state_bytes() const {
    return sizeof(state_header) + pymtp_state_bytes(target.get(), pymtp_most_to_replay(target.get())) +
        ((draft ? n_embd : 0) + n_vocab)*sizeof(float);
}

pymtp_cell_options pymtp_pair::cell_options() const {
    const pymtp_cell_kind kind = pymtp_get_cell_kind(target.get());

    pymtp_cell_options found = {{}, {}, kind.flash_attn, draft != nullptr, (int32_t) llama_n_ubatch(target.get()), options.prefill, {}};
    std::strncpy(found.type_k, ggml_type_name(kind.type_k), sizeof(found.type_k) - 1);
    std::strncpy(found.type_v, ggml_type_name(kind.type_v), sizeof(found.type_v) - 1);
    std::strncpy(found.weights, pymtp_weight_buffers(target.get()).c_str(), sizeof(found.weights) - 1);
    return found;
}

int pymtp_pair::begin_save(int32_t seq, int32_t first, int32_t n) {
    return check_range("that the sequence holds", first, n, sequences[seq].n_past) ? level(seq) : (int) PYMTP_INVALID;
}

int pymtp_pair::save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data) {
    const size_t stride = cell_bytes();
    if (!pymtp_save_cells(target.get(), seq, first, n, data, stride) ||
            (draft && !pymtp_save_cells(draft.get(), seq, first, n, data + pymtp_cell_bytes(target.get()), stride))) {
        return say_cancelled();
    }
    counters.saved_bytes += stride*n;
    return PYMTP_OK;
}

int pymtp_pair::load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data) {
    if (!check_stage(seq, first, n)) {
        return PYMTP_INVALID;
    }
    const size_t stride = cell_bytes();
    if (!pymtp_load_cells(target.get(), seq, first, n, data, stride)) {
        return say_cancelled();
    }
    pymtp_fault_in_copy(*this);
    if (draft && !pymtp_load_cells(draft.get(), seq, first, n, data + pymtp_cell_bytes(target.get()), stride)) {
        return say_cancelled();
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
    if (!check_stage(to, first, n)) {
        return PYMTP_INVALID;
    }
    const int64_t n_target = pymtp_copy_cells(target.get(), from, to, first, n);
    if (n_target < 0) {
        return say_cancelled();
    }
    pymtp_fault_in_copy(*this);
    const int64_t n_draft = draft ? pymtp_copy_cells(draft.get(), from, to, first, n) : 0;
    if (n_draft < 0) {
        return say_cancelled();
    }
    sequences[to].n_staged = first + n;
    counters.sequence_bytes += n_target + n_draft;
    return PYMTP_OK;
}

int pymtp_pair::keep_cells(int32_t seq, int32_t n) {
    if (int status = begin_save(seq, 0, n)) {
        return status;
    }
    if (n > 0 && (!pymtp_has_cells_in_order(target.get(), seq, n) || (draft && !pymtp_has_cells_in_order(draft.get(), seq, n)))) {
        pymtp_set_error("the tokens are not in the first cells of their sequence");
        return PYMTP_FAILED;
    }
    sequences[seq].n_staged = n; // which clear() leaves as they are
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
    if (int status = level(seq)) {
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

    uint8_t * at = data;
    std::memcpy(at, &header, sizeof(header));
    at += sizeof(header);
    if (!pymtp_save_state(target.get(), seq, s.n_past, at)) {
        return say_cancelled();
    }
    at += pymtp_state_bytes(target.get(), header.n_replay);
    if (draft) {
        std::vector<float> row(n_embd);
        if (host->holds(seq)) {
            std::memcpy(row.data(), host->last_row(seq), n_embd*sizeof(float));
        } else {
            pymtp_get_kept_row(target.get(), seq, s.n_past, row.data());
        }
        std::memcpy(at, row.data(), n_embd*sizeof(float));
        at += n_embd*sizeof(float);
    }
    if (header.has_logits) {
        std::memcpy(at, s.first_logits, n_vocab*sizeof(float));
        at += n_vocab*sizeof(float);
    }
    counters.saved_bytes += at - data;
    return PYMTP_OK;
}

// Reads the header, and says what does not fit.
static bool read_header(const pymtp_pair & pair, state_header & header, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) {
    std::string wrong;
    if (size >= sizeof(header)) {
        std::memcpy(&header, data, sizeof(header));
    }
    llama_context * target = pair.target.get();
    const int32_t   most   = pymtp_most_to_replay(target);
    if (n < 1) {
        wrong = "a state is of at least one token";
    } else if (size < sizeof(header) || std::memcmp(header.mark, state_mark, sizeof(state_mark)) != 0) {
        wrong = "these bytes are no state";
    } else if (header.n_tokens != n || header.tokens != digest_of(tokens, n)) {
        wrong = "the state is of " + std::to_string(header.n_tokens) + " tokens, and not of these";
    } else if (header.has_row != (pair.draft ? 1 : 0)) {
        wrong = pair.draft ? "the state was saved without drafts" : "the state was saved with drafts, and there are none here";
    } else if (header.n_replay < 0 || header.n_replay > most) {
        wrong = "the state has " + std::to_string(header.n_replay) + " tokens to replay, and there is room for " +
            std::to_string(most) + ": it needs more draft_tokens";
    } else if (header.n_replay > n) {
        wrong = "the state has " + std::to_string(header.n_replay) + " tokens to replay, of " + std::to_string(n);
    } else {
        const size_t right = sizeof(header) + pymtp_state_bytes(target, header.n_replay) +
            (header.has_row ? pair.n_embd*sizeof(float) : 0) + (header.has_logits ? pair.n_vocab*sizeof(float) : 0);
        if (size != right) {
            wrong = "the state has " + std::to_string(size) + " bytes, it must have " + std::to_string(right);
        }
    }
    if (!wrong.empty()) {
        pymtp_set_error(wrong);
    }
    return wrong.empty();
}

int pymtp_pair::check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size, bool * logits) const {
    state_header header;
    if (!check_tokens(tokens, n) || !read_header(*this, header, tokens, n, data, size)) {
        return PYMTP_INVALID;
    }
    *logits = header.has_logits != 0;
    return PYMTP_OK;
}

int pymtp_pair::load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) {
    state_header header;
    if (!check_stage(seq, 0, n) || !check_tokens(tokens, n) || !read_header(*this, header, tokens, n, data, size)) {
        return PYMTP_INVALID;
    }
    const int32_t n_staged = sequences[seq].n_staged;
    if (n_staged < n) {
        pymtp_set_error("K and V of " + std::to_string(n_staged) + " tokens were put into the sequence, not of " + std::to_string(n));
        return PYMTP_INVALID;
    }
    clear(seq); // host rows and logits of what was there before
    pymtp_sequence & s = sequences[seq];
    s.n_staged = n_staged;

    const uint8_t * at = data + sizeof(header);
    if (!pymtp_load_state(target.get(), seq, tokens, n, header.n_replay, at)) {
        return say_cancelled();
    }
    at += pymtp_state_bytes(target.get(), header.n_replay);
    pymtp_fault_in_copy(*this);
    if (draft) {
        pymtp_load_state(draft.get(), seq, tokens, n, 0, nullptr);
        std::vector<float> row(n_embd);
        std::memcpy(row.data(), at, n_embd*sizeof(float));
        at += n_embd*sizeof(float);
        if (fuses()) {
            pymtp_set_kept_row(target.get(), seq, n, row.data());
        } else {
            host->begin_after(seq, row.data());
        }
        s.n_head = n;
    }
    if (header.has_logits) {
        s.copied_logits.resize(n_vocab);
        std::memcpy(s.copied_logits.data(), at, n_vocab*sizeof(float));
        s.first_logits = s.copied_logits.data();
    }
    s.n_past   = n;
    s.n_staged = 0;
    s.tokens.assign(tokens, tokens + n);
    see(tokens, n);
    counters.loaded_bytes += size;
    return PYMTP_OK;
}
