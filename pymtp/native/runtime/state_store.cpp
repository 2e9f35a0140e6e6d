#include "state_store.h"

#include "api_guard.h"
#include "compare/faults.h"

#include "pymtp_context.h"

#include <algorithm>

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

// Returns a digest that detects a state saved for other tokens: FNV-1a, over 32 bits at a time. All images count as the
// same, because their tokens are numbered anew in each process.
uint64_t digest_of(const llama_token * tokens, int32_t n) {
    uint64_t digest = 14695981039346656037u;
    for (int32_t i = 0; i < n; ++i) {
        digest = (digest ^ (uint32_t) std::max(tokens[i], LLAMA_TOKEN_NULL))*1099511628211u;
    }
    return digest;
}

void refuse(const std::string & why) {
    throw pymtp_failure(PYMTP_INVALID, why);
}

// Ends the call unless a copy is complete. The functions of pymtp_context.h return false, or a negative number of
// bytes, when the call was cancelled.
int64_t require_complete(int64_t n_bytes) {
    if (n_bytes < 0) {
        throw pymtp_failure(PYMTP_CANCELLED, "cancelled");
    }
    return n_bytes;
}

void require_complete(bool complete) { require_complete(complete ? int64_t(0) : int64_t(-1)); }

void check_range(const char * what, int32_t first, int32_t n, int32_t limit) {
    if (first < 0 || n < 0 || first > limit || n > limit - first) {
        refuse("tokens " + std::to_string(first) + " to " + std::to_string((int64_t) first + n) +
                " are not within the " + std::to_string(limit) + " tokens " + what);
    }
}

// Copies n floats to `to` and returns the end of the copy.
uint8_t * put(uint8_t * to, const float * values, size_t n) {
    std::memcpy(to, values, n*sizeof(float));
    return to + n*sizeof(float);
}

size_t state_size(const pymtp_contexts & contexts, int32_t n_replay, bool with_logits) {
    const size_t n_floats = (contexts.draft ? contexts.n_embd : 0) + (with_logits ? contexts.n_vocab : 0);
    return sizeof(state_header) + pymtp_state_bytes(contexts.target.get(), n_replay) + n_floats*sizeof(float);
}

// Reads the header of a saved state. Throws when the state does not fit the contexts and the tokens.
state_header read_header(const pymtp_contexts & contexts, const llama_token * tokens, int32_t n, const uint8_t * data,
        size_t size) {
    if (n < 1) {
        refuse("a state is of at least one token");
    }
    contexts.check_prompt({}, tokens, n);
    state_header header;
    if (size >= sizeof(header)) {
        std::memcpy(&header, data, sizeof(header));
    }
    if (size < sizeof(header) || std::memcmp(header.mark, state_mark, sizeof(state_mark)) != 0) {
        refuse("these bytes are no state");
    }
    if (header.n_tokens != n || header.tokens != digest_of(tokens, n)) {
        refuse("the state is of " + std::to_string(header.n_tokens) + " tokens, and not of these");
    }
    if (header.has_row != (contexts.draft ? 1 : 0)) {
        refuse(contexts.draft ? "the state was saved without drafts"
                : "the state was saved with drafts, and there are none here");
    }
    const std::string replayed   = "the state has " + std::to_string(header.n_replay) + " tokens to replay, ";
    const int32_t     max_replay = pymtp_max_to_replay(contexts.target.get());
    if (header.n_replay < 0 || header.n_replay > max_replay) {
        refuse(replayed + "and there is room for " + std::to_string(max_replay) + ": it needs more draft_tokens");
    }
    if (header.n_replay > n) {
        refuse(replayed + "of " + std::to_string(n));
    }
    const size_t expected_size = state_size(contexts, header.n_replay, header.has_logits != 0);
    if (size != expected_size) {
        refuse("the state has " + std::to_string(size) + " bytes, it must have " + std::to_string(expected_size));
    }
    return header;
}

} // namespace

pymtp_state_store::pymtp_state_store(pymtp_contexts & contexts, std::vector<pymtp_sequence> & sequences,
        pymtp_head_sync & head, pymtp_draft_rows & vocab) :
    contexts(contexts), sequences(sequences), head(head), vocab(vocab) {}

void pymtp_state_store::clear(int32_t seq) {
    sequences[seq].stage(0);
    clear_unstaged(seq);
}

// Clears a sequence, but leaves its staged cells.
void pymtp_state_store::clear_unstaged(int32_t seq) {
    pymtp_fault_in_clear(contexts);
    llama_memory_seq_rm(llama_get_memory(contexts.target.get()), seq, -1, -1);
    head.clear(seq);
    sequences[seq].clear();
}

void pymtp_state_store::copy(int32_t from, int32_t to) {
    contexts.check_seq(from);
    const pymtp_sequence & s = sequences[from];
    if (from == to || !sequences[to].is_empty()) {
        refuse("sequence " + std::to_string(to) + " holds " + std::to_string(sequences[to].n_past()) +
                " tokens: a copy goes to another sequence, which is empty");
    }
    clear(to); // drops hidden states on the host and logits that the sequence has kept from its earlier tokens
    head.discard_drafts(from);
    int64_t n_bytes = require_complete(
            pymtp_copy_sequence(contexts.target.get(), from, to, s.n_past(), s.n_head()));
    pymtp_fault_in_copy(contexts);
    if (contexts.draft) {
        n_bytes += require_complete(pymtp_copy_sequence(contexts.draft.get(), from, to, s.n_head(), s.n_head()));
        head.host()->copy(from, to);
    }
    sequences[to].copy(s, contexts.n_vocab);
    contexts.counters.sequence_bytes += n_bytes;
}

// Throws unless n tokens from `first` on can be staged: the sequence must be empty, and all tokens before `first` must
// be staged.
void pymtp_state_store::check_staging(int32_t seq, int32_t first, int32_t n) const {
    const pymtp_sequence & s = sequences[seq];
    if (!s.is_empty()) {
        refuse("sequence " + std::to_string(seq) + " holds " + std::to_string(s.n_past()) +
                " tokens and is not empty");
    }
    if (first > s.n_staged()) {
        refuse("K and V of " + std::to_string(s.n_staged()) + " tokens were put into sequence " +
                std::to_string(seq) + ", those of token " + std::to_string(first) + " would leave a gap");
    }
    check_range("that a sequence has room for", first, n, contexts.n_ctx);
}

void pymtp_state_store::stage(int32_t seq, int32_t n) {
    sequences[seq].stage(n);
    head.end_stage(seq);
}

size_t pymtp_state_store::cell_bytes() const {
    return pymtp_cell_bytes(contexts.target.get()) + (contexts.draft ? pymtp_cell_bytes(contexts.draft.get()) : 0);
}

size_t pymtp_state_store::max_state_bytes() const {
    return state_size(contexts, pymtp_max_to_replay(contexts.target.get()), /*with_logits =*/ true);
}

pymtp_cell_format pymtp_state_store::cell_format() const {
    llama_context * target = contexts.target.get();
    const pymtp_kv_format kv = pymtp_get_kv_format(target);

    pymtp_cell_format format = {{}, {}, kv.flash_attn, contexts.draft != nullptr, (int32_t) llama_n_ubatch(target),
            contexts.options.prefill, {}};
    std::strncpy(format.type_k, ggml_type_name(kv.type_k), sizeof(format.type_k) - 1);
    std::strncpy(format.type_v, ggml_type_name(kv.type_v), sizeof(format.type_v) - 1);
    std::strncpy(format.weights, pymtp_weight_buffers(target).c_str(), sizeof(format.weights) - 1);
    return format;
}

void pymtp_state_store::prepare_cells(int32_t seq, int32_t first, int32_t n) {
    check_range("that the sequence holds", first, n, sequences[seq].n_past());
    head.prepare_save(seq);
}

void pymtp_state_store::save_cells(int32_t seq, int32_t first, int32_t n, uint8_t * data) {
    llama_context * target = contexts.target.get();
    const size_t    stride = cell_bytes();
    require_complete(pymtp_save_cells(target, seq, first, n, data, stride));
    if (contexts.draft) {
        data += pymtp_cell_bytes(target);
        require_complete(pymtp_save_cells(contexts.draft.get(), seq, first, n, data, stride));
    }
    contexts.counters.saved_bytes += stride*n;
}

void pymtp_state_store::load_cells(int32_t seq, int32_t first, int32_t n, const uint8_t * data) {
    check_staging(seq, first, n);
    llama_context * target = contexts.target.get();
    const size_t    stride = cell_bytes();
    require_complete(pymtp_load_cells(target, seq, first, n, data, stride));
    pymtp_fault_in_copy(contexts);
    if (contexts.draft) {
        data += pymtp_cell_bytes(target);
        require_complete(pymtp_load_cells(contexts.draft.get(), seq, first, n, data, stride));
    }
    stage(seq, first + n);
    contexts.counters.loaded_bytes += stride*n;
}

void pymtp_state_store::copy_cells(int32_t from, int32_t to, int32_t first, int32_t n) {
    if (from == to) {
        refuse("K and V go to another sequence");
    }
    check_staging(to, first, n);
    int64_t n_bytes = require_complete(pymtp_copy_cells(contexts.target.get(), from, to, first, n));
    pymtp_fault_in_copy(contexts);
    if (contexts.draft) {
        n_bytes += require_complete(pymtp_copy_cells(contexts.draft.get(), from, to, first, n));
    }
    stage(to, first + n);
    contexts.counters.sequence_bytes += n_bytes;
}

void pymtp_state_store::retain_cells(int32_t seq, int32_t n) {
    prepare_cells(seq, 0, n);
    for (llama_context * ctx : {contexts.target.get(), contexts.draft.get()}) {
        if (n > 0 && ctx && !pymtp_has_cells_in_order(ctx, seq, n)) {
            throw pymtp_failure(PYMTP_FAILED, "the tokens are not in the first cells of their sequence");
        }
    }
    sequences[seq].stage(n);
    clear_unstaged(seq);
}

size_t pymtp_state_store::prepare_state(int32_t seq, bool with_logits) {
    const pymtp_sequence & s = sequences[seq];
    if (s.n_past() == 0) {
        refuse("sequence " + std::to_string(seq) + " holds no tokens");
    }
    head.prepare_save(seq);
    const int32_t n_replay = pymtp_n_to_replay(contexts.target.get(), seq, s.n_past());
    return state_size(contexts, n_replay, with_logits && s.first_logits());
}

void pymtp_state_store::save_state(int32_t seq, bool with_logits, uint8_t * data) {
    llama_context * target = contexts.target.get();
    const pymtp_sequence & s = sequences[seq];

    state_header header = {};
    std::memcpy(header.mark, state_mark, sizeof(state_mark));
    header.n_tokens   = s.n_past();
    header.n_replay   = pymtp_n_to_replay(target, seq, s.n_past());
    header.has_row    = contexts.draft != nullptr;
    header.has_logits = with_logits && s.first_logits();
    header.tokens     = digest_of(s.tokens().data(), s.n_past());

    uint8_t * pos = data;
    std::memcpy(pos, &header, sizeof(header));
    pos += sizeof(header);
    require_complete(pymtp_save_state(target, seq, s.n_past(), pos));
    pos += pymtp_state_bytes(target, header.n_replay);
    if (contexts.draft) {
        std::vector<float> row(contexts.n_embd);
        head.read_row(seq, row.data());
        pos = put(pos, row.data(), row.size());
    }
    if (header.has_logits) {
        pos = put(pos, s.first_logits(), contexts.n_vocab);
    }
    contexts.counters.saved_bytes += pos - data;
}

bool pymtp_state_store::check_state(const llama_token * tokens, int32_t n, const uint8_t * data, size_t size) const {
    return read_header(contexts, tokens, n, data, size).has_logits != 0;
}

void pymtp_state_store::load_state(int32_t seq, const llama_token * tokens, int32_t n, const uint8_t * data,
        size_t size) {
    check_staging(seq, 0, n);
    const state_header header = read_header(contexts, tokens, n, data, size);
    pymtp_sequence & s = sequences[seq];
    const int32_t n_staged = s.n_staged();
    if (n_staged < n) {
        refuse("K and V of " + std::to_string(n_staged) + " tokens were put into the sequence, not of " +
                std::to_string(n));
    }
    clear_unstaged(seq); // drops hidden states on the host and logits that the sequence has kept from earlier tokens

    const uint8_t * pos = data + sizeof(header);
    require_complete(pymtp_load_state(contexts.target.get(), seq, tokens, n, header.n_replay, pos));
    pos += pymtp_state_bytes(contexts.target.get(), header.n_replay);
    pymtp_fault_in_copy(contexts);
    if (contexts.draft) {
        pymtp_load_state(contexts.draft.get(), seq, tokens, n, 0, nullptr);
    }
    s.load(contexts.images, tokens, n, contexts.draft != nullptr);
    // copied, because the data may not be aligned for floats
    const auto floats = [&pos](size_t n_floats) {
        std::vector<float> values(n_floats);
        std::memcpy(values.data(), pos, n_floats*sizeof(float));
        pos += n_floats*sizeof(float);
        return values;
    };
    if (contexts.draft) {
        head.write_row(seq, floats(contexts.n_embd).data());
    }
    if (header.has_logits) {
        s.keep_logits(floats(contexts.n_vocab).data(), contexts.n_vocab);
    }
    vocab.observe(tokens, n);
    contexts.counters.loaded_bytes += size;
}
