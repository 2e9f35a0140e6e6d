// Attention of a block of rows over a chunk of KV cells: see flash_attn_block.h.

#include "flash_attn_block.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

static constexpr int BLOCK_KV = 16; // cells that are taken together

int64_t block_scratch_size(int64_t DK, int64_t DV) {
    // a block of K and of V as F32, the rows as K has them, their mask; and a cache line between threads
    return BLOCK_KV*(DK + DV) + BLOCK_Q*(DK + BLOCK_KV) + CACHE_LINE_SIZE_F32;
}

#if defined(__AVX2__)
// The sums of eight vectors, in order.
static inline __m256 sum_8(const GGML_F32_VEC * x) {
    __m256 y[8];
    for (int i = 0; i < 8; ++i) {
#if defined(__AVX512F__)
        y[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x[i]), 1)));
#else
        y[i] = x[i];
#endif
    }
    const __m256 lo = _mm256_hadd_ps(_mm256_hadd_ps(y[0], y[1]), _mm256_hadd_ps(y[2], y[3]));
    const __m256 hi = _mm256_hadd_ps(_mm256_hadd_ps(y[4], y[5]), _mm256_hadd_ps(y[6], y[7]));

    return _mm256_add_ps(_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31));
}
#endif

// s[j] = q*k[j], for a block of KV cells.
static void dot_block(int64_t n, const float * q, const float * k, float * s) {
#if defined(__AVX2__)
    const int64_t np = n - n%GGML_F32_EPR;

    for (int j0 = 0; j0 < BLOCK_KV; j0 += 8) {
        GGML_F32_VEC sum[8];
        for (int j = 0; j < 8; ++j) {
            sum[j] = GGML_F32_VEC_ZERO;
        }
        for (int64_t i = 0; i < np; i += GGML_F32_EPR) {
            const GGML_F32_VEC qi = GGML_F32_VEC_LOAD(q + i);
            for (int j = 0; j < 8; ++j) {
                sum[j] = GGML_F32_VEC_FMA(sum[j], GGML_F32_VEC_LOAD(k + (j0 + j)*n + i), qi);
            }
        }
        _mm256_storeu_ps(s + j0, sum_8(sum));
        for (int64_t i = np; i < n; ++i) {
            for (int j = j0; j < j0 + 8; ++j) {
                s[j] += k[j*n + i]*q[i];
            }
        }
    }
#else
    for (int j = 0; j < BLOCK_KV; ++j) {
        ggml_vec_dot_f32(n, s + j, 0, k + j*n, 0, q, 0, 1);
    }
#endif
}

// y += p[c]*v[cells[c]], for n_cells of a block of KV cells.
static void mad_block(int64_t n, float * y, const float * v, int n_cells, const int * cells, const float * p) {
    int64_t i = 0;
#if defined(__AVX2__)
    // a part of y stays in registers while all cells are added to it
    for (; i + 8*GGML_F32_EPR <= n; i += 8*GGML_F32_EPR) {
        GGML_F32_VEC sum[8];
        for (int r = 0; r < 8; ++r) {
            sum[r] = GGML_F32_VEC_LOAD(y + i + r*GGML_F32_EPR);
        }
        for (int c = 0; c < n_cells; ++c) {
            const GGML_F32_VEC pc = GGML_F32_VEC_SET1(p[c]);
            for (int r = 0; r < 8; ++r) {
                sum[r] = GGML_F32_VEC_FMA(sum[r], GGML_F32_VEC_LOAD(v + cells[c]*n + i + r*GGML_F32_EPR), pc);
            }
        }
        for (int r = 0; r < 8; ++r) {
            GGML_F32_VEC_STORE(y + i + r*GGML_F32_EPR, sum[r]);
        }
    }
    for (; i + GGML_F32_EPR <= n; i += GGML_F32_EPR) {
        GGML_F32_VEC sum = GGML_F32_VEC_LOAD(y + i);
        for (int c = 0; c < n_cells; ++c) {
            sum = GGML_F32_VEC_FMA(sum, GGML_F32_VEC_LOAD(v + cells[c]*n + i), GGML_F32_VEC_SET1(p[c]));
        }
        GGML_F32_VEC_STORE(y + i, sum);
    }
#endif
    for (int c = 0; i < n && c < n_cells; ++c) {
        ggml_vec_mad_f32(n - i, y + i, v + cells[c]*n + i, p[c]);
    }
}

static void to_f32(const ggml_tensor * t, const void * x, float * y, int64_t n) {
    switch (t->type) {
        case GGML_TYPE_F32:  memcpy(y, x, n*sizeof(float));                        break;
        case GGML_TYPE_F16:  ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) x, y, n); break;
        case GGML_TYPE_BF16: ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) x, y, n); break;
        default:             ggml_get_type_traits(t->type)->to_float(x, y, n);     break;
    }
}

// Fetches a cell for later: heads lie between a head's cells, which the hardware does not foresee.
static inline void fetch(const char * x, size_t size) {
#if defined(__AVX2__)
    for (size_t i = 0; i < size; i += CACHE_LINE_SIZE) {
        _mm_prefetch(x + i, _MM_HINT_T0);
    }
#else
    GGML_UNUSED(x);
    GGML_UNUSED(size);
#endif
}

// Whether a row's mask is minus infinity for a block of KV cells.
static bool all_masked(const ggml_fp16_t * mask) {
    constexpr uint64_t MINUS_INF = 0xfc00fc00fc00fc00;  // four times

    uint64_t m[BLOCK_KV/4];
    memcpy(m, mask, sizeof(m));
    uint64_t differences = 0;
    for (uint64_t four : m) {
        differences |= four ^ MINUS_INF;
    }
    return differences == 0;
}

void attend_block(
        const ggml_compute_params * params, const ggml_tensor * dst,
        int64_t ir0, int64_t ir1, int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * mask  = dst->src[3];
    const ggml_tensor * sinks = dst->src[4];

    GGML_TENSOR_LOCALS(int64_t, neq, q, ne)
    GGML_TENSOR_LOCALS(size_t,  nbq, q, nb)
    GGML_TENSOR_LOCALS(size_t,  nbk, k, nb)
    GGML_TENSOR_LOCALS(size_t,  nbv, v, nb)

    const int64_t DK = k->ne[0];
    const int64_t DV = v->ne[0];

    float       scale         = ggml_get_op_params_f32(dst, 0);
    const float max_bias      = ggml_get_op_params_f32(dst, 1);
    const float logit_softcap = ggml_get_op_params_f32(dst, 2);

    if (logit_softcap != 0) {
        scale /= logit_softcap;
    }

    // ALiBi, https://arxiv.org/abs/2108.12409
    const uint32_t n_head      = neq2;
    const uint32_t n_head_log2 = 1u << (uint32_t) floor(log2(n_head));

    const float m0 = powf(2.0f, -(max_bias       )/n_head_log2);
    const float m1 = powf(2.0f, -(max_bias / 2.0f)/n_head_log2);

    const bool              k_is_quantized = ggml_is_quantized(k->type);
    const ggml_type         k_vec_dot_type = ggml_get_type_traits_cpu(k->type)->vec_dot_type;
    const ggml_from_float_t q_to_vec_dot   = ggml_get_type_traits_cpu(k_vec_dot_type)->from_float;
    const ggml_vec_dot_t    kq_vec_dot     = ggml_get_type_traits_cpu(k->type)->vec_dot;

    float * K32    = (float *) params->wdata + params->ith*block_scratch_size(DK, DV);
    float * V32    = K32 + BLOCK_KV*DK;
    float * Q_q    = V32 + BLOCK_KV*DV;
    float * mask32 = Q_q + BLOCK_Q*DK;

    const int n_rows = ir1 - ir0;
    GGML_ASSERT(n_rows <= BLOCK_Q);

    const float       * pq[BLOCK_Q];
    const ggml_fp16_t * mp[BLOCK_Q];
    float            slope[BLOCK_Q];

    for (int r = 0; r < n_rows; ++r) {
        const int64_t iq3 = (ir0 + r)/(neq2*neq1);
        const int64_t iq2 = (ir0 + r)/neq1%neq2;
        const int64_t iq1 = (ir0 + r)%neq1;

        pq[r] = (const float *) ((const char *) q->data + iq1*nbq1 + iq2*nbq2 + iq3*nbq3);
        mp[r] = mask ? (const ggml_fp16_t *) ((const char *) mask->data + iq1*mask->nb[1] + (iq2%mask->ne[2])*mask->nb[2] + (iq3%mask->ne[3])*mask->nb[3]) : nullptr;
        slope[r] = max_bias <= 0.0f ? 1.0f : iq2 < n_head_log2 ? powf(m0, iq2 + 1) : powf(m1, 2*(iq2 - n_head_log2) + 1);

        if (k_is_quantized) {
            q_to_vec_dot(pq[r], Q_q + r*DK, DK);
        }
        float * partial = partials + r*partial_stride;
        partial[0] = -INFINITY;
        memset(partial + 1, 0, (1 + DV)*sizeof(float));
    }

    const int64_t iq3 = ir0/(neq2*neq1);
    const int64_t iq2 = ir0/neq1%neq2;

    const char * k_head = (const char *) k->data + iq2/(neq2/k->ne[2])*nbk2 + iq3/(neq3/k->ne[3])*nbk3;
    const char * v_head = (const char *) v->data + iq2/(neq2/v->ne[2])*nbv2 + iq3/(neq3/v->ne[3])*nbv3;

    for (int64_t ic = ic_start; ic < ic_end; ic += BLOCK_KV) {
        const int n_cells = std::min<int64_t>(BLOCK_KV, ic_end - ic);

        // a block past the last token is masked for all rows, and one of another sequence for some
        bool sees[BLOCK_Q];
        bool any = false;
        for (int r = 0; r < n_rows; ++r) {
            sees[r] = mask && r > 0 && mp[r] == mp[r - 1] ? sees[r - 1] :
                !mask || n_cells < BLOCK_KV || !all_masked(mp[r] + ic);
            any |= sees[r];
        }
        if (!any) {
            continue;
        }

        // a cell that no row sees is not read: it may hold NaN
        bool seen[BLOCK_KV] = {};
        for (int r = 0; r < n_rows; ++r) {
            float * m = mask32 + r*BLOCK_KV;
            if (!sees[r]) {
                continue;
            }
            if (mask && r > 0 && mp[r] == mp[r - 1] && slope[r] == slope[r - 1]) {
                memcpy(m, m - BLOCK_KV, BLOCK_KV*sizeof(float));
                continue;
            }
            for (int j = 0; j < BLOCK_KV; ++j) {
                m[j] = j >= n_cells ? -INFINITY : mask ? slope[r]*GGML_CPU_FP16_TO_FP32(mp[r][ic + j]) : 0.0f;
                seen[j] |= m[j] != -INFINITY;
            }
        }
        for (int j = 0; j < n_cells; ++j) {
            if (seen[j]) {
                fetch(k_head + (ic + BLOCK_KV + j)*nbk1, ggml_row_size(k->type, DK));
                fetch(v_head + (ic + BLOCK_KV + j)*nbv1, ggml_row_size(v->type, DV));
                if (!k_is_quantized) {
                    to_f32(k, k_head + (ic + j)*nbk1, K32 + j*DK, DK);
                }
                to_f32(v, v_head + (ic + j)*nbv1, V32 + j*DV, DV);
            }
        }

        for (int r = 0; r < n_rows; ++r) {
            const float * m = mask32 + r*BLOCK_KV;
            if (!sees[r]) {
                continue;
            }

            float s[BLOCK_KV];
            if (k_is_quantized) {
                for (int j = 0; j < n_cells; ++j) {
                    if (m[j] != -INFINITY) {
                        kq_vec_dot(DK, s + j, 0, k_head + (ic + j)*nbk1, 0, Q_q + r*DK, 0, 1);
                    }
                }
            } else {
                dot_block(DK, pq[r], K32, s);
            }
            float s_max = -INFINITY;
            bool  none  = true;
            for (int j = 0; j < BLOCK_KV; ++j) {
                s[j] *= scale;
                if (logit_softcap != 0.0f) {
                    s[j] = logit_softcap*tanhf(s[j]);
                }
                s[j]  = m[j] == -INFINITY ? -INFINITY : s[j] + m[j];
                s_max = s[j] > s_max ? s[j] : s_max;
                none &= s[j] == -INFINITY; // false where a score is NaN
            }
            if (none) {
                continue;
            }

            float * partial = partials + r*partial_stride;
            if (s_max > partial[0]) {
                const float ms = expf(partial[0] - s_max);
                ggml_vec_scale_f32(DV, partial + 2, ms);
                partial[0]  = s_max;
                partial[1] *= ms;
            }
            partial[1] += ggml_vec_soft_max_f32(BLOCK_KV, s, s, partial[0]);

            int cells[BLOCK_KV];
            int n_used = 0;
            for (int j = 0; j < n_cells; ++j) {
                cells[n_used] = j;
                s[n_used]     = s[j];
                n_used       += s[j] != 0.0f;
            }
            mad_block(DV, partial + 2, V32, n_used, cells, s);
        }
    }

    // sinks count as one more cell of the first chunk, whose V is 0
    for (int r = 0; sinks && ic_start == 0 && r < n_rows; ++r) {
        float * partial = partials + r*partial_stride;

        const float s = ((const float *) sinks->data)[(ir0 + r)/neq1%neq2];
        if (s > partial[0]) {
            const float ms = expf(partial[0] - s);
            ggml_vec_scale_f32(DV, partial + 2, ms);
            partial[0] = s;
            partial[1] = partial[1]*ms + 1.0f;
        } else {
            partial[1] += expf(s - partial[0]);
        }
    }
}

}  // namespace pymtp
