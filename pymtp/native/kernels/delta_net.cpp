// The delta nets of a target whose memory is the host's: tokens to replay, new tokens, and what is kept of them, in one go.
//
// A GATED_DELTA_NET with sources beyond those of ggml_gated_delta_net, see graphs/replay_graph.cpp. llama.cpp's own goes over
// a head's state four times a token, in memory, and copies it before and after. Here four rows of the state go through all
// tokens without leaving the registers (S_v 16, 32, 64 and 128, on AVX2 and AVX-512), and the state is stored once, where it
// was read. A token takes the same steps however many tokens there are, and when it is replayed, so a verification of drafts
// has the bits of single tokens. Formulas: ggml_gated_delta_net in ggml.h, and https://arxiv.org/abs/2412.06464.

#include "kernels.h"
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

#if defined(__AVX2__)

// The sums of four vectors, in order.
static inline __m128 sum_4(const GGML_F32_VEC * x) {
    __m128 y[4];
    for (int i = 0; i < 4; ++i) {
#if defined(__AVX512F__)
        const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x[i]), 1)));
#else
        const __m256 h = x[i];
#endif
        y[i] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    return _mm_hadd_ps(_mm_hadd_ps(y[0], y[1]), _mm_hadd_ps(y[2], y[3]));
}

// Four rows, of NV vectors each.
template <int NV>
static void four_rows(const Tokens & replayed, const Tokens & tokens, int64_t j, int64_t S_v, float * state, bool store_between, float *) {
    const __m128 scale = _mm_set1_ps(1.0f/sqrtf((float) S_v));

    state += j*NV*GGML_F32_EPR;

    GGML_F32_VEC s[4][NV];
    for (int r = 0; r < 4; ++r) {
        for (int i = 0; i < NV; ++i) {
            s[r][i] = GGML_F32_VEC_LOAD(state + (r*NV + i)*GGML_F32_EPR);
        }
    }
    const auto store = [&] {
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < NV; ++i) {
                GGML_F32_VEC_STORE(state + (r*NV + i)*GGML_F32_EPR, s[r][i]);
            }
        }
    };
    const auto take = [&](const Tokens & x, int64_t t, auto has_output) {
        const float * q = x.q[t];
        const float * k = x.k[t];

        const __m128 v    = _mm_loadu_ps(x.v[t] + j);
        const __m128 beta = _mm_set1_ps(x.beta[t]);

        const GGML_F32_VEC decay = GGML_F32_VEC_SET1(x.decay[t]);

        GGML_F32_VEC sum[4] = { GGML_F32_VEC_ZERO, GGML_F32_VEC_ZERO, GGML_F32_VEC_ZERO, GGML_F32_VEC_ZERO };
        for (int i = 0; i < NV; ++i) {
            const GGML_F32_VEC ki = GGML_F32_VEC_LOAD(k + i*GGML_F32_EPR);
            for (int r = 0; r < 4; ++r) {
                s[r][i] = GGML_F32_VEC_MUL(s[r][i], decay);
                sum[r]  = GGML_F32_VEC_FMA(sum[r], s[r][i], ki);
            }
        }

        float delta[4];
        _mm_storeu_ps(delta, _mm_mul_ps(_mm_sub_ps(v, sum_4(sum)), beta));

        for (int r = 0; r < 4; ++r) {
            sum[r] = GGML_F32_VEC_ZERO;
        }
        for (int i = 0; i < NV; ++i) {
            const GGML_F32_VEC ki = GGML_F32_VEC_LOAD(k + i*GGML_F32_EPR);
            for (int r = 0; r < 4; ++r) {
                s[r][i] = GGML_F32_VEC_FMA(s[r][i], ki, GGML_F32_VEC_SET1(delta[r]));
            }
            if constexpr (has_output) {
                const GGML_F32_VEC qi = GGML_F32_VEC_LOAD(q + i*GGML_F32_EPR);
                for (int r = 0; r < 4; ++r) {
                    sum[r] = GGML_F32_VEC_FMA(sum[r], s[r][i], qi);
                }
            }
        }
        if constexpr (has_output) {
            _mm_storeu_ps(x.out[t] + j, _mm_mul_ps(sum_4(sum), scale));
        }
    };

    for (int64_t t = 0; t < replayed.n; ++t) {
        take(replayed, t, std::false_type());
    }
    if (store_between && replayed.n > 0) {
        store();
    }
    for (int64_t t = 0; t < tokens.n; ++t) {
        take(tokens, t, std::true_type());
    }
    if (!store_between) {
        store();
    }
}

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
#if defined(__AVX2__)
        switch (S_v) {
            case  16: call = four_rows< 16/GGML_F32_EPR>; n = 4; break;
            case  32: call = four_rows< 32/GGML_F32_EPR>; n = 4; break;
            case  64: call = four_rows< 64/GGML_F32_EPR>; n = 4; break;
            case 128: call = four_rows<128/GGML_F32_EPR>; n = 4; break;
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
