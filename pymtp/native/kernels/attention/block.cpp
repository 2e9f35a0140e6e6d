// Attention of a block of rows over a chunk of KV cells. See block.h.

#include "attention/block.h"
#include "attention/cells.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

static constexpr int MAX_BLOCKS = CHUNK_KV/BLOCK_KV;
// The distance between the scores of two rows, in floats. With CHUNK_KV floats (2048 bytes), all rows would be in the
// same cache sets.
static constexpr int SCORE_STRIDE = CHUNK_KV + BLOCK_KV;

// The distance of two cells in F32: not a multiple of the size of cache sets, which all cells would share else.
static int64_t x32_stride(int64_t n) { return n + CACHE_LINE_SIZE_F32; }

// Returns how many floats a block of K, or the blocks of V that are added at once, need.
static int64_t x32_size(int64_t DK, int64_t DV) {
    return BLOCK_KV*std::max(x32_stride(DK), MAX_SPAN*x32_stride(DV));
}

int64_t block_scratch_size(int64_t DK, int64_t DV) {
    // The scratch holds cells in F32; for each row the weighted sums of V, the scores, and q in the vec_dot type of K;
    // and space for alignment.
    return x32_size(DK, DV) + BLOCK_Q*(DV + SCORE_STRIDE + DK) + 2*CACHE_LINE_SIZE_F32;
}

static void to_f32(ggml_type type, const char * x, float * y, int64_t n) {
    switch (type) {
        case GGML_TYPE_F32:  memcpy(y, x, n*sizeof(float));                        break;
        case GGML_TYPE_F16:  ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) x, y, n); break;
        case GGML_TYPE_BF16: ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) x, y, n); break;
#if defined(PYMTP_AVX2)
        case GGML_TYPE_Q8_0: q8_0_to_f32((const block_q8_0 *) x, y, n);            break;
        case GGML_TYPE_Q4_0: q4_0_to_f32((const block_q4_0 *) x, y, n);            break;
#endif
        default:             ggml_get_type_traits(type)->to_float(x, y, n);        break;
    }
}

// Returns whether to_f32() takes less time than the vec_dot of the type, even for few rows.
static bool has_fast_conversion(ggml_type type) {
#if defined(PYMTP_AVX2)
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0;
#else
    GGML_UNUSED(type);
    return false;
#endif
}

// The K or V of one KV head in a chunk of cells.
struct Cells {
    const ggml_tensor * t;
    const char        * data;
    int64_t             n_cells;
    int64_t             size; // bytes of a cell

    Cells(const ggml_tensor * t, const ggml_tensor * q, int64_t iq2, int64_t iq3, int64_t ic_start, int64_t ic_end) :
        t(t), n_cells(ic_end - ic_start) {
        data = (const char *) t->data + ic_start*t->nb[1] +
            iq2/(q->ne[2]/t->ne[2])*t->nb[2] + iq3/(q->ne[3]/t->ne[3])*t->nb[3];
        size = ggml_row_size(t->type, t->ne[0]);
    }

    const char * at(int b, int j) const { return data + (b*BLOCK_KV + j)*t->nb[1]; }
    int          count(int b)     const { return std::min<int64_t>(BLOCK_KV, n_cells - b*BLOCK_KV); }

    // Calls f(x, stride) for some blocks. x[b] is block b with BLOCK_KV cells. These are the F16 cells of the cache, if
    // the block is full and can_read_f16() is true for n rows; else F32 copies of the cells, in y.
    template <typename F> void with_blocks(const int * blocks, int n_blocks, float * y, int n, F f) const {
        const auto is_full = [&](int b) { return count(b) == BLOCK_KV; };
        if (t->type == GGML_TYPE_F16 && can_read_f16(t->ne[0], n) && std::all_of(blocks, blocks + n_blocks, is_full)) {
            const ggml_fp16_t * x[MAX_SPAN];
            for (int b = 0; b < n_blocks; ++b) {
                x[b] = (const ggml_fp16_t *) at(blocks[b], 0);
            }
            f(x, t->nb[1]/sizeof(ggml_fp16_t));
        } else {
            const float * x[MAX_SPAN];
            const int64_t stride = x32_stride(t->ne[0]);
            for (int b = 0; b < n_blocks; ++b, y += BLOCK_KV*stride) {
                x[b] = y;
                for (int j = 0; j < count(blocks[b]); ++j) {
                    to_f32(t->type, at(blocks[b], j), y + j*stride, t->ne[0]);
                }
            }
            f(x, stride);
        }
    }
};

// Fetches blocks of cells into the CPU's cache, a share with each step of a computation. The CPU has a queue of only
// some memory requests, and waits when the queue is full. The cells of a KV head are far apart in memory, so the
// hardware does not prefetch them. Line after line of a single cell, it would: but then it goes on into cells of other
// heads, which takes 1.2 times as long.
struct Prefetch {
    const Cells     & cells;
    const int       * block;
    const int * const end;
    const int64_t     share;      // bytes to fetch at each step
    int               cell   = 0; // the next cell of the block
    int64_t           offset = 0; // bytes of each cell that were fetched

    Prefetch(const Cells & cells, const int * blocks, int n_blocks, int n_steps) :
        cells(cells), block(blocks), end(blocks + n_blocks),
        share((n_blocks*BLOCK_KV*GGML_PAD(cells.size, CACHE_LINE_SIZE) + n_steps - 1)/n_steps) {}

    void step() {
#if defined(__AVX2__)
        for (int64_t n = 0; n < share && block < end; n += CACHE_LINE_SIZE) {
            _mm_prefetch(cells.at(*block, cell) + offset, _MM_HINT_T1);
            if (++cell < BLOCK_KV) {
                continue;
            }
            cell    = 0;
            offset += CACHE_LINE_SIZE;
            if (offset >= cells.size) {
                offset = 0;
                block++;
            }
        }
#endif
    }
};

// A row of q, and its mask for a chunk of KV cells.
struct Row {
    alignas(CACHE_LINE_SIZE) float max[BLOCK_KV]; // the largest score so far at each index of a block

    const float       * q;
    const ggml_fp16_t * mask;                   // mask of the chunk, or null if nothing is masked
    ggml_fp16_t         partial_mask[BLOCK_KV]; // mask of the last block, if it is not full
    float               slope;
    uint16_t            visible[MAX_BLOCKS];    // bit j of visible[b]: the row sees cell j of block b

    void init(int64_t n_cells) {
        std::fill(max, max + BLOCK_KV, -INFINITY);

        const int64_t n_full = n_cells/BLOCK_KV;
        for (int64_t b = 0; b < n_full; ++b) {
            visible[b] = mask ? visible_cells(mask + b*BLOCK_KV) : 0xffff;
        }
        if (n_full*BLOCK_KV < n_cells) {
            for (int64_t j = 0; j < BLOCK_KV; ++j) {
                const int64_t ic = n_full*BLOCK_KV + j;
                partial_mask[j] = ic >= n_cells ? GGML_CPU_FP32_TO_FP16(-INFINITY) : mask ? mask[ic] : 0;
            }
            visible[n_full] = visible_cells(partial_mask);
        }
    }

    // Does the same for a row with the mask of `other`: that of another head.
    void init(const Row & other) {
        std::fill(max, max + BLOCK_KV, -INFINITY);
        memcpy(partial_mask, other.partial_mask, sizeof(partial_mask));
        memcpy(visible,      other.visible,      sizeof(visible));
    }

    const ggml_fp16_t * block_mask(int64_t b, int64_t n_cells) const {
        static const ggml_fp16_t none[BLOCK_KV] = {};
        return (b + 1)*BLOCK_KV > n_cells ? partial_mask : mask ? mask + b*BLOCK_KV : none;
    }
};

void attend_block(
        const ggml_compute_params * params, const ggml_tensor * dst,
        int64_t ir0, int64_t ir1, int64_t ic_start, int64_t ic_end, float * partials, int64_t partial_stride) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * mask  = dst->src[3];
    const ggml_tensor * sinks = dst->src[4];

    GGML_TENSOR_LOCALS(int64_t, neq, q, ne)

    const int64_t DK = k->ne[0];
    const int64_t DV = v->ne[0];

    const float scale         = ggml_get_op_params_f32(dst, 0);
    const float max_bias      = ggml_get_op_params_f32(dst, 1);
    const float logit_softcap = ggml_get_op_params_f32(dst, 2);

    // slopes of ALiBi, https://arxiv.org/abs/2108.12409
    const uint32_t n_head      = neq2;
    const uint32_t n_head_log2 = 1u << (uint32_t) floor(log2(n_head));

    const float m0 = powf(2.0f, -(max_bias       )/n_head_log2);
    const float m1 = powf(2.0f, -(max_bias / 2.0f)/n_head_log2);

    const bool              k_by_vec_dot   = ggml_is_quantized(k->type) && !has_fast_conversion(k->type);
    const ggml_type         k_vec_dot_type = ggml_get_type_traits_cpu(k->type)->vec_dot_type;
    const ggml_from_float_t q_to_vec_dot   = ggml_get_type_traits_cpu(k_vec_dot_type)->from_float;
    const ggml_vec_dot_t    kq_vec_dot     = ggml_get_type_traits_cpu(k->type)->vec_dot;

    float * work   = (float *) params->wdata + params->ith*block_scratch_size(DK, DV);
    float * x32    = (float *) GGML_PAD((uintptr_t) work, CACHE_LINE_SIZE);
    float * sums   = x32 + x32_size(DK, DV);
    float * scores = sums + BLOCK_Q*DV;
    float * q_k    = scores + BLOCK_Q*SCORE_STRIDE;

    const int     n_rows  = ir1 - ir0;
    const int64_t n_cells = ic_end - ic_start;
    GGML_ASSERT(n_rows <= BLOCK_Q && n_cells <= CHUNK_KV);

    Row rows[BLOCK_Q];
    for (int r = 0; r < n_rows; ++r) {
        const int64_t iq3 = (ir0 + r)/(neq2*neq1);
        const int64_t iq2 = (ir0 + r)/neq1%neq2;
        const int64_t iq1 = (ir0 + r)%neq1;

        rows[r].q     = (const float *) row_at(q, ir0 + r);
        rows[r].mask  = mask ? (const ggml_fp16_t *) ((const char *) mask->data + iq1*mask->nb[1] +
            (iq2%mask->ne[2])*mask->nb[2] + (iq3%mask->ne[3])*mask->nb[3]) + ic_start : nullptr;
        rows[r].slope = max_bias <= 0.0f ? 1.0f :
            iq2 < n_head_log2 ? powf(m0, iq2 + 1) : powf(m1, 2*(iq2 - n_head_log2) + 1);
        if (mask && mask->ne[2] == 1 && r >= neq1) {
            rows[r].init(rows[r - neq1]);
        } else {
            rows[r].init(n_cells);
        }

        if (k_by_vec_dot) {
            q_to_vec_dot(rows[r].q, q_k + r*DK, DK);
        }
    }
    memset(sums, 0, n_rows*DV*sizeof(float));

    // Skip the blocks of which no row sees a cell: blocks after the last token, and blocks of other sequences.
    int blocks[MAX_BLOCKS];
    int n_blocks = 0;
    for (int b = 0; b*BLOCK_KV < n_cells; ++b) {
        const bool any_visible =
            std::any_of(rows, rows + n_rows, [&](const Row & row) { return row.visible[b] != 0; });
        blocks[n_blocks] = b;
        n_blocks += any_visible;
    }

    const int64_t iq3 = ir0/(neq2*neq1);
    const int64_t iq2 = ir0/neq1%neq2;

    // Few rows wait for memory: they fetch all of the next block at once, and add V block by block.
    const bool  is_few    = n_rows <= FEW_ROWS;
    const int   span      = is_few ? 1 : MAX_SPAN;
    const int   dot_steps = is_few ? 1 : k_by_vec_dot ? n_groups(n_rows, DOT_GROUP) : n_dot_steps(n_rows, DK);
    const int   mad_steps = is_few ? 1 : n_mad_steps(n_rows, DV);
    const Cells k_cells(k, q, iq2, iq3, ic_start, ic_end);
    const Cells v_cells(v, q, iq2, iq3, ic_start, ic_end);
    for (int i = 0; i < n_blocks; ++i) {
        const int b = blocks[i];
        Prefetch fetch = i + 1 < n_blocks ?
            Prefetch(k_cells, blocks + i + 1, 1, dot_steps) :
            Prefetch(v_cells, blocks, std::min(span, n_blocks), dot_steps);
        const float * q_rows[BLOCK_Q];
        float       * score_rows[BLOCK_Q];
        int           n = 0; // number of rows that see a cell of the block
        for (int r = 0; r < n_rows; ++r) {
            float * s = scores + r*SCORE_STRIDE + i*BLOCK_KV;
            if (rows[r].visible[b] == 0) {
                std::fill(s, s + BLOCK_KV, -INFINITY);
            } else {
                q_rows[n]   = rows[r].q;
                score_rows[n++] = s;
            }
        }
        if (k_by_vec_dot) {
            for (int r = 0; r < n_rows; ++r) {
                if (r%DOT_GROUP == 0) {
                    fetch.step();
                }
                for (int j = 0; j < BLOCK_KV; ++j) {
                    if (rows[r].visible[b] >> j & 1) {
                        kq_vec_dot(
                            DK, scores + r*SCORE_STRIDE + i*BLOCK_KV + j, 0, k_cells.at(b, j), 0, q_k + r*DK, 0, 1);
                    }
                }
            }
        } else {
            k_cells.with_blocks(&b, 1, x32, n, [&](const auto * const * x, int64_t stride) {
                dot_rows(n, DK, q_rows, x[0], stride, score_rows, fetch);
            });
        }
        for (int r = 0; r < n_rows; ++r) {
            if (rows[r].visible[b] == 0) {
                continue;
            }
            float * s = scores + r*SCORE_STRIDE + i*BLOCK_KV;
            if (logit_softcap != 0.0f) {
                for (int j = 0; j < BLOCK_KV; ++j) {
                    s[j] = logit_softcap*tanhf(s[j]*(scale/logit_softcap));
                }
            }
            mask_cells(
                s, logit_softcap != 0.0f ? 1.0f : scale, rows[r].block_mask(b, n_cells), rows[r].slope, rows[r].max);
        }
    }

    for (int r = 0; r < n_rows; ++r) {
        const float max = *std::max_element(rows[r].max, rows[r].max + BLOCK_KV);
        float *     s   = scores + r*SCORE_STRIDE;

        // max ignores NaN. If it is minus infinity, the scores are not shifted: then a NaN score, which may be among
        // them, still gives NaN.
        partials[r*partial_stride]     = max;
        partials[r*partial_stride + 1] = ggml_vec_soft_max_f32(n_blocks*BLOCK_KV, s, s, max == -INFINITY ? 0.0f : max);
    }

    for (int i = 0; i < n_blocks; i += span) {
        const int n_span = std::min(span, n_blocks - i);
        const int n_next = std::min(span, n_blocks - i - n_span);
        Prefetch fetch(v_cells, blocks + i + n_span, n_next, mad_steps*n_span);
        uint64_t      visible[BLOCK_Q];
        float       * out_rows[BLOCK_Q];
        const float * weight_rows[BLOCK_Q];
        int           n = 0;
        for (int r = 0; r < n_rows; ++r) {
            visible[n] = 0;
            for (int b = 0; b < n_span; ++b) {
                visible[n] |= (uint64_t) rows[r].visible[blocks[i + b]] << b*BLOCK_KV;
            }
            if (visible[n] != 0) {
                out_rows[n]      = sums + r*DV;
                weight_rows[n++] = scores + r*SCORE_STRIDE + i*BLOCK_KV;
            }
        }
        v_cells.with_blocks(blocks + i, n_span, x32, n, [&](const auto * const * x, int64_t stride) {
            mad_rows(n, DV, out_rows, x, n_span, stride, visible, weight_rows, fetch);
        });
    }
    for (int r = 0; r < n_rows; ++r) {
        memcpy(partials + r*partial_stride + 2, sums + r*DV, DV*sizeof(float));
    }

    // An attention sink counts as one more cell of the first chunk, with a V of 0.
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
