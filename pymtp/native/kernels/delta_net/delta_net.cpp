// GATED_DELTA_NET for a target model whose recurrent memory is in host memory. One node replays the accepted tokens of
// the last round, computes new tokens, and stores the inputs of the new tokens for a later replay.
//
// Such a node has more sources than a node of ggml_gated_delta_net(): see graphs/replay_graph.cpp. llama.cpp's kernel
// reads the state of a head four times per token, and copies the state before and after. Here up to 32 rows of the
// state stay in the L1 cache for all tokens, are read once per token, and are updated in place (S_v 16, 32, 64 and 128,
// on AVX2, AVX-512 and NEON). The steps for a token do not depend on the number of tokens or on the replay, so a token
// has the same bits in a verification of drafts as alone. Formulas: ggml_gated_delta_net in ggml.h, and
// https://arxiv.org/abs/2412.06464.

#include "kernels.h"
#include "simd.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

static constexpr int64_t MAX_TOKENS = 72;  // most tokens in a block; a verification has fewer

// The inputs and outputs of a block of tokens, for one head.
struct Tokens {
    int64_t n = 0;
    const float * q[MAX_TOKENS];
    const float * k[MAX_TOKENS];
    const float * v[MAX_TOKENS];
    float * out[MAX_TOKENS];
    float decay[MAX_TOKENS];
    float beta[MAX_TOKENS];
};

// Updates rows of a head's state, from row j on: first with the replayed tokens, which need no output, then with the
// new tokens. With store_after_replay, stores the state as it is after the replay, because new tokens may be rejected;
// else the state after all tokens. The stored state is transposed: its row j is column j of S.
typedef void (*run_rows_fn)(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state,
        bool store_after_replay, float * work);

#if defined(PYMTP_SIMD_F32)

// Updates R rows of the state, of NV vectors each. step() reads these rows once: it updates them with a token, and
// multiplies the updated rows by that token's q and by the next token's k. The products of LANES rows are stored as one
// vector.
template <int NV, int R>
struct simd_rows {
    static constexpr int n    = NV*simd::LANES;
    static constexpr int HALF = simd::LANES/2;
    static_assert(R%simd::LANES == 0);

    const float * src;          // the state before the current token
    float         decay;        // decay, k and delta are those of the current token
    const float * k;
    alignas(64) float delta[R];
    alignas(64) float sum[R];   // products of the state with the next token's k

    void begin(const float * state, const float * k_next) {
        src = state;
        step<false, false, true>(nullptr, nullptr, nullptr, 0.0f, k_next);
    }

    void compute_delta(const Tokens & x, int64_t t, int64_t j) {
        decay = x.decay[t];
        k     = x.k[t];
        for (int r = 0; r < R; r += simd::LANES) {
            const simd::fvec v = simd::fnma(simd::fload(sum + r), simd::frepeat(decay), simd::fload(x.v[t] + j + r));
            simd::fstore(delta + r, simd::fmul(v, simd::frepeat(x.beta[t])));
        }
    }

    template <bool has_token, bool has_output, bool has_next>
    void step(float * to, float * out, const float * q, float scale, const float * k_next) {
        // Local copies of k, q and k_next, so that the compiler knows that no store changes them.
        simd::fvec kv[NV];
        simd::fvec qv[NV];
        simd::fvec next[NV];
        for (int i = 0; i < NV; ++i) {
            kv[i]   = has_token  ? simd::fload(k + i*simd::LANES)      : simd::fzero();
            qv[i]   = has_output ? simd::fload(q + i*simd::LANES)      : simd::fzero();
            next[i] = has_next   ? simd::fload(k_next + i*simd::LANES) : simd::fzero();
        }
        const simd::fvec decays = simd::frepeat(decay);
        for (int r0 = 0; r0 < R; r0 += simd::LANES) {
            simd::fvec outs[2];
            simd::fvec sums[2];
            for (int h = 0; h < 2; ++h) {
                simd::fvec o[HALF];
                simd::fvec s[HALF];
                for (int r = 0; r < HALF; ++r) {
                    const int row = r0 + h*HALF + r;
                    o[r] = s[r] = simd::fzero();
                    if constexpr (!has_token) {
                        simd::prefetch<NV*simd::BYTES>(src + (row + R)*n); // fetch the next R rows
                    }
                    const simd::fvec d = has_token ? simd::frepeat(delta[row]) : simd::fzero();
                    for (int i = 0; i < NV; ++i) {
                        simd::fvec x = simd::fload(src + row*n + i*simd::LANES);
                        if constexpr (has_token) {
                            x = simd::fma(kv[i], d, simd::fmul(x, decays));
                            simd::fstore(to + row*n + i*simd::LANES, x);
                        }
                        if constexpr (has_output) {
                            o[r] = simd::fma(x, qv[i], o[r]);
                        }
                        if constexpr (has_next) {
                            s[r] = simd::fma(x, next[i], s[r]);
                        }
                    }
                }
                if constexpr (has_output) {
                    outs[h] = simd::half_sums(o);
                }
                if constexpr (has_next) {
                    sums[h] = simd::half_sums(s);
                }
            }
            if constexpr (has_output) {
                simd::fstore(out + r0, simd::fmul(simd::join(outs[0], outs[1]), simd::frepeat(scale)));
            }
            if constexpr (has_next) {
                simd::fstore(sum + r0, simd::join(sums[0], sums[1]));
            }
        }
        if constexpr (has_token) {
            src = to;
        }
    }

    static void run(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state,
            bool store_after_replay, float *) {
        const float scale = 1.0f/sqrtf((float) S_v);

        alignas(64) float after[R*n]; // the state after new tokens, which may be rejected
        float * to = store_after_replay ? after : state + j*n;

        simd_rows rows;
        rows.begin(state + j*n, replayed.n > 0 ? replayed.k[0] : tokens.k[0]);
        for (int64_t t = 0; t < replayed.n; ++t) {
            rows.compute_delta(replayed, t, j);
            rows.template step<true, false, true>(
                state + j*n, nullptr, nullptr, 0.0f, t + 1 < replayed.n ? replayed.k[t + 1] : tokens.k[0]);
        }
        for (int64_t t = 0; t < tokens.n; ++t) {
            rows.compute_delta(tokens, t, j);
            if (t + 1 < tokens.n) {
                rows.template step<true, true, true>(to, tokens.out[t] + j, tokens.q[t], scale, tokens.k[t + 1]);
            } else {
                rows.template step<true, true, false>(to, tokens.out[t] + j, tokens.q[t], scale, nullptr);
            }
        }
    }
};

#endif

// Updates one row of the state, of any length, on any processor.
static void scalar_row(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state,
        bool store_after_replay, float * s) {
    const int   n     = S_v;
    const float scale = 1.0f/sqrtf((float) S_v);

    state += j*S_v;
    memcpy(s, state, n*sizeof(float));

    const auto step = [&](const Tokens & x, int64_t t) {
        float sum = 0.0f;
        ggml_vec_scale_f32(n, s, x.decay[t]);
        ggml_vec_dot_f32(n, &sum, 0, s, 0, x.k[t], 0, 1);
        ggml_vec_mad_f32(n, s, x.k[t], (x.v[t][j] - sum)*x.beta[t]);
    };
    for (int64_t t = 0; t < replayed.n; ++t) {
        step(replayed, t);
    }
    if (store_after_replay && replayed.n > 0) {
        memcpy(state, s, n*sizeof(float));
    }
    for (int64_t t = 0; t < tokens.n; ++t) {
        step(tokens, t);

        float sum = 0.0f;
        ggml_vec_dot_f32(n, &sum, 0, s, 0, tokens.q[t], 0, 1);
        tokens.out[t][j] = sum*scale;
    }
    if (!store_after_replay) {
        memcpy(state, s, n*sizeof(float));
    }
}

struct row_kernel {
    run_rows_fn run = scalar_row;
    int64_t     n   = 1;  // number of rows that a call of run() updates

    explicit row_kernel(int64_t S_v) {
#if defined(PYMTP_SIMD_F32)
        switch (S_v) {
            case  16: run = simd_rows< 16/simd::LANES, 16>::run; n = 16; break;
            case  32: run = simd_rows< 32/simd::LANES, 32>::run; n = 32; break;
            case  64: run = simd_rows< 64/simd::LANES, 32>::run; n = 32; break;
            case 128: run = simd_rows<128/simd::LANES, 32>::run; n = 32; break;
        }
#else
        GGML_UNUSED(S_v);
#endif
    }
};

// The sources of a node. Each row of input_cache holds the inputs of one token: k, v, g and beta. replay_ids are the
// rows of the tokens to replay, store_ids the rows in which the inputs of the new tokens are stored. The last row of
// input_cache is all zeros; its index in replay_ids marks the end of the list.
struct Inputs {
    explicit Inputs(const ggml_tensor * dst) :
        dst(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), g(dst->src[3]), beta(dst->src[4]), state(dst->src[5]),
        input_cache(dst->src[6]), replay_ids(dst->src[7]), store_ids(dst->src[8]), S_v(v->ne[0]), H(v->ne[1]),
        n_tokens(v->ne[2]), n_seqs(v->ne[3]) {
        // The size of k follows from the size of a row, because the graph may have repeated k for all heads.
        n_k = input_cache ? input_cache->ne[0] - H*S_v - 2*H : 0;
    }

    const ggml_tensor * dst, * q, * k, * v, * g, * beta, * state, * input_cache, * replay_ids, * store_ids;

    const int64_t S_v, H, n_tokens, n_seqs;
    int64_t n_k;

    static const float * at(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
        return (const float *) ((const char *) t->data + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3]);
    }

    float * input_row(int32_t i) const { return (float *) ((char *) input_cache->data + i*input_cache->nb[1]); }

    // Sets x to the new tokens from t0 on, at most MAX_TOKENS, for head i1 and sequence i3.
    void load_tokens(Tokens & x, int64_t i1, int64_t i3, int64_t t0) const {
        x.n = std::min(n_tokens - t0, MAX_TOKENS);
        const int64_t i1_q = i1%q->ne[1];
        const int64_t i1_k = i1%k->ne[1];
        for (int64_t t = 0; t < x.n; ++t) {
            x.q[t]     = at(q,    i1_q, t0 + t, i3);
            x.k[t]     = at(k,    i1_k, t0 + t, i3);
            x.v[t]     = at(v,    i1,   t0 + t, i3);
            x.out[t]   = (float *) at(dst, i1, t0 + t, i3);
            x.decay[t] = expf(*at(g, i1, t0 + t, i3));
            x.beta[t]  = *at(beta, i1, t0 + t, i3);
        }
    }

    // Sets x to the tokens to replay, for head i1 and sequence i3.
    void load_replayed(Tokens & x, int64_t i1, int64_t i3) const {
        const int32_t * rows  = (const int32_t *) at(replay_ids, i3, 0, 0);
        const int32_t   zeros = input_cache->ne[1] - 1;

        GGML_ASSERT(replay_ids->ne[0] <= MAX_TOKENS);
        for (x.n = 0; x.n < replay_ids->ne[0] && rows[x.n] != zeros; ++x.n) {
            const float * in = input_row(rows[x.n]);

            x.k[x.n]     = in + i1*S_v%n_k;
            x.v[x.n]     = in + n_k + i1*S_v;
            x.decay[x.n] = expf(in[n_k + H*S_v + i1]);
            x.beta[x.n]  = in[n_k + H*S_v + H + i1];
        }
    }

    // Stores the inputs of new token t of sequence i3 in input_cache.
    void store(int64_t t, int64_t i3) const {
        float * to = input_row(((const int32_t *) store_ids->data)[i3*n_tokens + t]);

        memcpy(to, at(k, 0, t, i3), n_k*sizeof(float));
        memcpy(to + n_k, at(v, 0, t, i3), H*S_v*sizeof(float));
        memcpy(to + n_k + H*S_v, at(g, 0, t, i3), H*sizeof(float));
        memcpy(to + n_k + H*S_v + H, at(beta, 0, t, i3), H*sizeof(float));
    }
};

// Computes heads ir0 to ir1 (excluded), numbered through all sequences: head h of sequence s is number s*H + h.
static void run_heads(const Inputs & inputs, int64_t ir0, int64_t ir1, float * work) {
    const row_kernel kernel(inputs.S_v);

    for (int64_t ir = ir0; ir < ir1; ++ir) {
        const int64_t i1 = ir%inputs.H; // head
        const int64_t i3 = ir/inputs.H; // sequence

        float * state = (float *) Inputs::at(inputs.state, 0, i1, i3);

        Tokens replayed;
        if (inputs.input_cache) {
            inputs.load_replayed(replayed, i1, i3);
        }
        Tokens tokens;
        for (int64_t t0 = 0; t0 < inputs.n_tokens; t0 += tokens.n) {
            inputs.load_tokens(tokens, i1, i3, t0);
            for (int64_t j = 0; j < inputs.S_v; j += kernel.n) {
                kernel.run(replayed, tokens, j, inputs.S_v, state, inputs.store_ids, work);
            }
            replayed.n = 0;
        }
    }
}

bool compute_delta_net(const ggml_compute_params * params, ggml_tensor * dst) {
    if (ggml_nelements(dst) != ggml_nelements(dst->src[2])) {
        return false; // made by ggml_gated_delta_net(), whose dst has space for states: llama.cpp computes it
    }
    const Inputs inputs(dst);
    GGML_ASSERT(!inputs.store_ids || inputs.n_tokens <= MAX_TOKENS);
    GGML_ASSERT(inputs.g->ne[0] == 1);

    // The heads are split into four pieces per thread.
    const int     nth  = params->nth;
    const int64_t nr   = inputs.H*inputs.n_seqs;
    const int64_t size = (nr + 4*nth - 1)/(4*nth);

    int64_t n_pieces = (nr + size - 1)/size;
    if (nth == 1 || n_pieces < nth || ggml_is_numa()) {
        n_pieces = nth;
    }
    const int64_t dr = (nr + n_pieces - 1)/n_pieces;

    float * work = (float *) params->wdata + params->ith*inputs.S_v;
    share_out(params, n_pieces, [&](int64_t i) {
        run_heads(inputs, dr*i, std::min(dr*(i + 1), nr), work);
    });
    if (inputs.store_ids) {
        ggml_barrier(params->threadpool); // store() may overwrite rows that other heads still replay
        for (int64_t i = params->ith; i < inputs.n_tokens*inputs.n_seqs; i += nth) {
            inputs.store(i%inputs.n_tokens, i/inputs.n_tokens);
        }
    }
    return true;
}

}  // namespace pymtp
