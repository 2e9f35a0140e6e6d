// The delta nets of a target whose memory is the host's: tokens to replay, new tokens, and what is kept of them, in one go.
//
// A GATED_DELTA_NET with sources beyond those of ggml_gated_delta_net, see graphs/replay_graph.cpp. llama.cpp's own goes over
// a head's state four times a token, and copies it before and after. Here up to 32 rows of the state go through all tokens in
// the nearest cache, once a token, and stay where they were read (S_v 16, 32, 64 and 128, on AVX2, AVX-512 and NEON). A token
// takes the same steps however many tokens there are, and when it is replayed, so a verification of drafts has the bits of single
// tokens. Formulas: ggml_gated_delta_net in ggml.h, and https://arxiv.org/abs/2412.06464.

#include "kernels.h"
#include "rows_simd.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

static constexpr int64_t BLOCK = 72;  // more tokens than a verification has

// A block of tokens of a head.
struct Tokens {
    int64_t n = 0;
    const float * q[BLOCK];
    const float * k[BLOCK];
    const float * v[BLOCK];
    float * out[BLOCK];
    float decay[BLOCK];
    float beta[BLOCK];
};

// Takes rows of a head's state, from j on, through tokens that are replayed, without output, and through others. The state is
// stored between the two, or after both. It is stored transposed: row j is column j of S.
typedef void (*rows_t)(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state, bool store_between, float * work);

#if defined(PYMTP_FLOAT_SIMD)

// R rows, of NV vectors each. The state is gone over once a token: it is brought to the token before, and multiplied by that
// token's q and by the next one's k. The sums of as many rows as there are lanes become a vector.
template <int NV, int R>
struct some_rows {
    static constexpr int n    = NV*simd::LANES;
    static constexpr int HALF = simd::LANES/2;
    static_assert(R%simd::LANES == 0);

    const float * from;              // the state before the token
    float         decay;             // of the token
    const float * k;
    alignas(64) float delta[R];
    alignas(64) float sum[R];        // what the state has of the next token's k

    void first(const float * state, const float * k_next) {
        from = state;
        pass<false, false, true>(nullptr, nullptr, nullptr, 0.0f, k_next);
    }

    void token(const Tokens & x, int64_t t, int64_t j) {
        decay = x.decay[t];
        k     = x.k[t];
        for (int r = 0; r < R; r += simd::LANES) {
            const simd::fvec v = simd::fnma(simd::fload(sum + r), simd::frepeat(decay), simd::fload(x.v[t] + j + r));
            simd::fstore(delta + r, simd::fmul(v, simd::frepeat(x.beta[t])));
        }
    }

    template <bool has_token, bool has_output, bool has_next>
    void pass(float * to, float * out, const float * q, float scale, const float * k_next) {
        // copies, which the compiler knows that no store changes
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
                        simd::fetch<NV*simd::BYTES>(from + (row + R)*n); // what comes next, for later
                    }
                    const simd::fvec d = has_token ? simd::frepeat(delta[row]) : simd::fzero();
                    for (int i = 0; i < NV; ++i) {
                        simd::fvec x = simd::fload(from + row*n + i*simd::LANES);
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
            from = to;
        }
    }

    static void take(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state, bool store_between, float *) {
        const float scale = 1.0f/sqrtf((float) S_v);

        alignas(64) float after[R*n]; // the state after tokens that may be taken back
        float * to = store_between ? after : state + j*n;

        some_rows rows;
        rows.first(state + j*n, replayed.n > 0 ? replayed.k[0] : tokens.k[0]);
        for (int64_t t = 0; t < replayed.n; ++t) {
            rows.token(replayed, t, j);
            rows.template pass<true, false, true>(state + j*n, nullptr, nullptr, 0.0f, t + 1 < replayed.n ? replayed.k[t + 1] : tokens.k[0]);
        }
        for (int64_t t = 0; t < tokens.n; ++t) {
            rows.token(tokens, t, j);
            if (t + 1 < tokens.n) {
                rows.template pass<true, true, true>(to, tokens.out[t] + j, tokens.q[t], scale, tokens.k[t + 1]);
            } else {
                rows.template pass<true, true, false>(to, tokens.out[t] + j, tokens.q[t], scale, nullptr);
            }
        }
    }
};

#endif

// One row, of any length, on any processor.
static void one_row(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state, bool store_between, float * s) {
    const int   n     = S_v;
    const float scale = 1.0f/sqrtf((float) S_v);

    state += j*S_v;
    memcpy(s, state, n*sizeof(float));

    const auto take = [&](const Tokens & x, int64_t t) {
        float sum = 0.0f;
        ggml_vec_scale_f32(n, s, x.decay[t]);
        ggml_vec_dot_f32(n, &sum, 0, s, 0, x.k[t], 0, 1);
        ggml_vec_mad_f32(n, s, x.k[t], (x.v[t][j] - sum)*x.beta[t]);
    };
    for (int64_t t = 0; t < replayed.n; ++t) {
        take(replayed, t);
    }
    if (store_between && replayed.n > 0) {
        memcpy(state, s, n*sizeof(float));
    }
    for (int64_t t = 0; t < tokens.n; ++t) {
        take(tokens, t);

        float sum = 0.0f;
        ggml_vec_dot_f32(n, &sum, 0, s, 0, tokens.q[t], 0, 1);
        tokens.out[t][j] = sum*scale;
    }
    if (!store_between) {
        memcpy(state, s, n*sizeof(float));
    }
}

struct rows_of {
    rows_t  call = one_row;
    int64_t n    = 1;

    explicit rows_of(int64_t S_v) {
#if defined(PYMTP_FLOAT_SIMD)
        switch (S_v) {
            case  16: call = some_rows< 16/simd::LANES, 16>::take; n = 16; break;
            case  32: call = some_rows< 32/simd::LANES, 32>::take; n = 32; break;
            case  64: call = some_rows< 64/simd::LANES, 32>::take; n = 32; break;
            case 128: call = some_rows<128/simd::LANES, 32>::take; n = 32; break;
        }
#else
        GGML_UNUSED(S_v);
#endif
    }
};

// The sources of a node, and where a token's inputs are in a row of what is kept.
struct Net {
    explicit Net(const ggml_tensor * dst) :
        dst(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), g(dst->src[3]), beta(dst->src[4]), state(dst->src[5]),
        kept(dst->src[6]), pending(dst->src[7]), places(dst->src[8]), S_v(v->ne[0]), H(v->ne[1]), n_tokens(v->ne[2]),
        n_seqs(v->ne[3]) {
        // k may have been repeated for all heads
        n_k = kept ? kept->ne[0] - H*S_v - 2*H : 0;
    }

    const ggml_tensor * dst, * q, * k, * v, * g, * beta, * state, * kept, * pending, * places;

    const int64_t S_v, H, n_tokens, n_seqs;
    int64_t n_k;

    static const float * at(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
        return (const float *) ((const char *) t->data + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3]);
    }

    float * row(int32_t i) const { return (float *) ((char *) kept->data + i*kept->nb[1]); }

    // of head i1 and sequence i3, the tokens from t0 on
    void read(Tokens & x, int64_t i1, int64_t i3, int64_t t0) const {
        x.n = std::min(n_tokens - t0, BLOCK);
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

    // and those to replay
    void read_pending(Tokens & x, int64_t i1, int64_t i3) const {
        const int32_t * rows  = (const int32_t *) at(pending, i3, 0, 0);
        const int32_t   zeros = kept->ne[1] - 1;

        GGML_ASSERT(pending->ne[0] <= BLOCK);
        for (x.n = 0; x.n < pending->ne[0] && rows[x.n] != zeros; ++x.n) {
            const float * in = row(rows[x.n]);

            x.k[x.n]     = in + i1*S_v%n_k;
            x.v[x.n]     = in + n_k + i1*S_v;
            x.decay[x.n] = expf(in[n_k + H*S_v + i1]);
            x.beta[x.n]  = in[n_k + H*S_v + H + i1];
        }
    }

    void keep(int64_t t, int64_t i3) const {
        float * to = row(((const int32_t *) places->data)[i3*n_tokens + t]);

        memcpy(to, at(k, 0, t, i3), n_k*sizeof(float));
        memcpy(to + n_k, at(v, 0, t, i3), H*S_v*sizeof(float));
        memcpy(to + n_k + H*S_v, at(g, 0, t, i3), H*sizeof(float));
        memcpy(to + n_k + H*S_v + H, at(beta, 0, t, i3), H*sizeof(float));
    }
};

// Heads ir0 to ir1, of all sequences.
static void heads(const Net & net, int64_t ir0, int64_t ir1, float * work) {
    const rows_of rows(net.S_v);

    for (int64_t ir = ir0; ir < ir1; ++ir) {
        const int64_t i1 = ir%net.H; // head
        const int64_t i3 = ir/net.H; // sequence

        float * state = (float *) Net::at(net.state, 0, i1, i3);

        Tokens replayed;
        if (net.kept) {
            net.read_pending(replayed, i1, i3);
        }
        Tokens tokens;
        for (int64_t t0 = 0; t0 < net.n_tokens; t0 += tokens.n) {
            net.read(tokens, i1, i3, t0);
            for (int64_t j = 0; j < net.S_v; j += rows.n) {
                rows.call(replayed, tokens, j, net.S_v, state, net.places, work);
            }
            replayed.n = 0;
        }
    }
}

bool compute_delta_net(const ggml_compute_params * params, ggml_tensor * dst) {
    if (ggml_nelements(dst) != ggml_nelements(dst->src[2])) {
        return false; // as ggml_gated_delta_net makes it, with room for states
    }
    const Net net(dst);
    GGML_ASSERT(!net.places || net.n_tokens <= BLOCK);
    GGML_ASSERT(net.g->ne[0] == 1);

    // four pieces a thread
    const int     nth  = params->nth;
    const int64_t nr   = net.H*net.n_seqs;
    const int64_t size = (nr + 4*nth - 1)/(4*nth);

    int64_t n_pieces = (nr + size - 1)/size;
    if (nth == 1 || n_pieces < nth || ggml_is_numa()) {
        n_pieces = nth;
    }
    const int64_t dr = (nr + n_pieces - 1)/n_pieces;

    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    ggml_barrier(params->threadpool);

    float * work = (float *) params->wdata + params->ith*net.S_v;
    for (int64_t i = params->ith; i < n_pieces; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        heads(net, dr*i, std::min(dr*(i + 1), nr), work);
    }
    if (net.places) {
        ggml_barrier(params->threadpool); // heads share the k that they replay, and it is written over
        for (int64_t i = params->ith; i < net.n_tokens*net.n_seqs; i += nth) {
            net.keep(i%net.n_tokens, i/net.n_tokens);
        }
    }
    return true;
}

}  // namespace pymtp
