// GATED_DELTA_NET with a head's state in registers (S_v 16, 32, 64 and 128, on AVX2 and AVX-512; no KDA).
//
// llama.cpp goes over a head's state four times a token, in memory, and copies it before and after. Here four rows of the
// state go through all tokens without leaving the registers, and each state that is kept is stored once. A token takes the
// same steps however many tokens there are, so a verification of drafts has the bits of single tokens. Formulas:
// ggml_gated_delta_net in ggml.h, and https://arxiv.org/abs/2412.06464.

#include "kernels.h"
#include "vec.h"

#include <algorithm>
#include <cmath>

namespace pymtp {

#if defined(__AVX2__)

// Where the states after the last n tokens go: slot 0 has the most recent, slot i the state of i tokens before.
struct Slots {
    char *  data; // of the first head of the first sequence
    size_t  nb_seq;
    size_t  nb;
    int64_t n;
    bool    past_cache; // stored to memory at once
};

// States of a layer that are as large as this have left the caches before a later token reads one of them. Stores past the
// caches save the reading of what was there before. Where the state just read is replaced, it is in the cache.
static constexpr size_t LARGE_STATES = 256*1024;

static inline void store_past_cache(float * y, GGML_F32_VEC x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(y, x);
#else
    _mm256_stream_ps(y, x);
#endif
}

static constexpr int64_t BLOCK = 64;

// A block of tokens of a head: pointers to the first, strides in bytes.
struct Tokens {
    int64_t n;
    int64_t n_after; // tokens that come after the block
    const char * q;
    const char * k;
    const char * v;
    char * out;
    size_t nb_q;
    size_t nb_k;
    size_t nb_v;
    size_t nb_out;
    float decay[BLOCK];
    float beta[BLOCK];
};

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

// Rows j to j + 3 of a head's state, NV vectors each, through a block of tokens. The state is stored transposed: row j is
// column j of S.
template <int NV>
static void four_rows(const Tokens & x, int64_t j, const float * s_in, const Slots & slots) {
    constexpr int64_t S_v = NV*GGML_F32_EPR;

    const __m128 scale = _mm_set1_ps(1.0f/sqrtf((float) S_v));

    GGML_F32_VEC s[4][NV];
    for (int r = 0; r < 4; ++r) {
        for (int i = 0; i < NV; ++i) {
            s[r][i] = GGML_F32_VEC_LOAD(s_in + (j + r)*S_v + i*GGML_F32_EPR);
        }
    }
    const auto store = [&](int64_t i_slot) {
        float * slot = (float *) (slots.data + i_slot*slots.nb);
        float * y    = slot + j*S_v;
        const bool past_cache = slots.past_cache && x.n_after == 0 && slot != s_in;
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < NV; ++i) {
                float * yi = y + r*S_v + i*GGML_F32_EPR;
                if (past_cache) {
                    store_past_cache(yi, s[r][i]);
                } else {
                    GGML_F32_VEC_STORE(yi, s[r][i]);
                }
            }
        }
    };

    for (int64_t t = 0; t < x.n; ++t) {
        const float * q = (const float *) (x.q + t*x.nb_q);
        const float * k = (const float *) (x.k + t*x.nb_k);

        const __m128 v    = _mm_loadu_ps((const float *) (x.v + t*x.nb_v) + j);
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
            const GGML_F32_VEC qi = GGML_F32_VEC_LOAD(q + i*GGML_F32_EPR);
            for (int r = 0; r < 4; ++r) {
                s[r][i] = GGML_F32_VEC_FMA(s[r][i], ki, GGML_F32_VEC_SET1(delta[r]));
                sum[r]  = GGML_F32_VEC_FMA(sum[r], s[r][i], qi);
            }
        }
        _mm_storeu_ps((float *) (x.out + t*x.nb_out) + j, _mm_mul_ps(sum_4(sum), scale));

        const int64_t i_slot = x.n_after + x.n - 1 - t;
        if (i_slot < slots.n) {
            store(i_slot);
        }
    }
    if (x.n_after > 0) {
        store(0); // the next block goes on from there
    }
}

typedef void (*four_rows_t)(const Tokens &, int64_t, const float *, const Slots &);

static four_rows_t four_rows_of(int64_t S_v) {
    switch (S_v) {
        case  16: return four_rows< 16/GGML_F32_EPR>;
        case  32: return four_rows< 32/GGML_F32_EPR>;
        case  64: return four_rows< 64/GGML_F32_EPR>;
        case 128: return four_rows<128/GGML_F32_EPR>;
        default:  return nullptr;
    }
}

// Heads ir0 to ir1, of all sequences.
static void heads(
        const ggml_tensor * dst, const state_source & states, const Slots & slots, four_rows_t rows, int64_t ir0, int64_t ir1) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * k    = dst->src[1];
    const ggml_tensor * v    = dst->src[2];
    const ggml_tensor * g    = dst->src[3];
    const ggml_tensor * beta = dst->src[4];

    GGML_TENSOR_LOCALS(int64_t, neq, q,    ne)
    GGML_TENSOR_LOCALS(size_t,  nbq, q,    nb)
    GGML_TENSOR_LOCALS(int64_t, nek, k,    ne)
    GGML_TENSOR_LOCALS(size_t,  nbk, k,    nb)
    GGML_TENSOR_LOCALS(size_t,  nbv, v,    nb)
    GGML_TENSOR_LOCALS(size_t,  nbg, g,    nb)
    GGML_TENSOR_LOCALS(size_t,  nbb, beta, nb)

    const int64_t S_v      = v->ne[0];
    const int64_t H        = v->ne[1];
    const int64_t n_tokens = v->ne[2];
    const int64_t n_seqs   = v->ne[3];

    for (int64_t ir = ir0; ir < ir1; ++ir) {
        const int64_t i1 = ir%H; // head
        const int64_t i3 = ir/H; // sequence

        const char * q_head = (const char *) q->data + i1%neq1*nbq1 + i3/(n_seqs/neq3)*nbq3;
        const char * k_head = (const char *) k->data + i1%nek1*nbk1 + i3/(n_seqs/nek3)*nbk3;
        const char * v_head = (const char *) v->data + i1*nbv1 + i3*nbv3;

        const Slots slots_head = { slots.data + i3*slots.nb_seq + i1*S_v*S_v*sizeof(float), slots.nb_seq, slots.nb, slots.n, slots.past_cache };

        const float * s = states.of(i3) + i1*S_v*S_v;

        Tokens x;
        x.nb_q   = nbq2;
        x.nb_k   = nbk2;
        x.nb_v   = nbv2;
        x.nb_out = S_v*H*sizeof(float);

        for (int64_t t0 = 0; t0 < n_tokens; t0 += x.n) {
            x.n       = std::min(n_tokens - t0, BLOCK);
            x.n_after = n_tokens - t0 - x.n;
            x.q       = q_head + t0*nbq2;
            x.k       = k_head + t0*nbk2;
            x.v       = v_head + t0*nbv2;
            x.out     = (char *) ((float *) dst->data + ((i3*n_tokens + t0)*H + i1)*S_v);

            for (int64_t t = 0; t < x.n; ++t) {
                x.decay[t] = expf(*(const float *) ((const char *) g->data + i3*nbg3 + (t0 + t)*nbg2 + i1*nbg1));
                x.beta[t]  = *(const float *) ((const char *) beta->data + i3*nbb3 + (t0 + t)*nbb2 + i1*nbb1);
            }
            for (int64_t j = 0; j < S_v; j += 4) {
                rows(x, j, s, slots_head);
            }
            s = (const float *) slots_head.data;
        }
    }
}

bool takes_delta_net(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    const ggml_tensor * g = dst->src[3];
    const ggml_tensor * s = dst->src[5];

    return four_rows_of(v->ne[0]) && g->ne[0] == 1 && q->type == GGML_TYPE_F32 && ggml_is_contiguous_rows(q) &&
        ggml_is_contiguous_rows(k) && ggml_is_contiguous_rows(v) && ggml_is_contiguous(s);
}

// Of the places that cpy writes to for a sequence, one may be that of its state: each part of it is read before it is written.
bool compute_delta_net(
        const ggml_compute_params * params, ggml_tensor * dst, const state_source & states, const ggml_tensor * cpy) {
    if (!takes_delta_net(dst)) {
        return false;
    }
    const ggml_tensor * v = dst->src[2];
    const ggml_tensor * s = dst->src[5];

    const four_rows_t rows = four_rows_of(v->ne[0]);

    // the result is the output of all tokens, then the states
    const size_t nb_seq = s->ne[0]*s->ne[1]*s->ne[2]*sizeof(float);

    Slots slots = { (char *) dst->data + ggml_nelements(v)*sizeof(float), nb_seq, s->ne[3]*nb_seq, ggml_get_op_params_i32(dst, 0), false };
    if (cpy) {
        slots.data   = (char *) cpy->data;
        slots.nb_seq = cpy->nb[1];
        slots.nb     = cpy->nb[2];
    }
    constexpr size_t line = 64;
    slots.past_cache = nb_seq >= LARGE_STATES && (uintptr_t) slots.data % line == 0 && slots.nb_seq % line == 0 && slots.nb % line == 0;

    // four pieces a thread
    const int     nth  = params->nth;
    const int64_t nr   = v->ne[1]*v->ne[3];
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

    for (int64_t i = params->ith; i < n_pieces; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        heads(dst, states, slots, rows, dr*i, std::min(dr*(i + 1), nr));
    }
    if (slots.past_cache) {
        _mm_sfence();  // before another thread reads
    }
    return true;
}

#else

bool takes_delta_net(const ggml_tensor *) {
    return false;
}

bool compute_delta_net(const ggml_compute_params *, ggml_tensor *, const state_source &, const ggml_tensor *) {
    return false;
}

#endif

bool compute_delta_net(const ggml_compute_params * params, ggml_tensor * dst) {
    return compute_delta_net(params, dst, state_source(dst->src[5]), nullptr);
}

}  // namespace pymtp
