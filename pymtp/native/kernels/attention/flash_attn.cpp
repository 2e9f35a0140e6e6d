// FLASH_ATTN_EXT in F32. Each block of KV cells is computed for several rows that share a KV head.
//
// Exactness: plain decoding computes one row, a verification of n drafts computes 1 + n rows, and a prefill one row for
// each token of the ubatch. A row must have the same bits in all three. llama.cpp splits the KV cells among the threads
// for a single row, does not split them for two rows, and uses another algorithm (tiles) from 64 rows on. Here the
// result of a row is merged, in order, from chunks of a fixed number of cells. So it depends only on the row and its
// cells: not on other rows of the batch, unused cells or the number of threads.
//
// Speed: llama.cpp adds V to a row's result cell by cell, in F16 and in memory, and converts a cell again for each
// query head that shares the cell. Here up to 128 rows use a block of cells, some rows at a time, whose sums stay in
// registers. The softmax uses SIMD, once all scores of a chunk are known. F32 is more precise, too: after 1,100 tokens
// decoded one by one, llama.cpp's logits of a small F32 model differ by 0.01 from its logits for the same tokens in one
// decode call, which uses tiles.

#include "attention/block.h"
#include "simd.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pymtp {

// For F32 and F16 caches, llama.cpp has a kernel with tiles. MAX_ROWS is the largest number of rows that we compute for
// these caches ourselves. With SIMD there is no limit, since prompts take less time with this kernel, too. Without
// SIMD, longer prompts are left to the tiles: there, the results of matrix products depend on the number of rows
// anyway.
#if defined(PYMTP_SIMD_F32)
static constexpr int64_t MAX_ROWS = INT64_MAX;
#else
static constexpr int64_t MAX_ROWS = 65; // the rows of a verification of 64 drafts
#endif

static bool is_supported(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];

    const bool has_tiles = k->type == v->type && (k->type == GGML_TYPE_F32 || k->type == GGML_TYPE_F16);

    return q->type == GGML_TYPE_F32 &&
           ggml_is_contiguous_rows(q) && ggml_is_contiguous_rows(k) && ggml_is_contiguous_rows(v) &&
           (q->ne[1] <= MAX_ROWS || !has_tiles);
}

static int64_t n_chunks_of(const ggml_tensor * dst) {
    return (dst->src[1]->ne[1] + CHUNK_KV - 1)/CHUNK_KV;
}

size_t flash_attn_work_size(int n_threads, const ggml_tensor * dst) {
    if (!is_supported(dst)) {
        return 0;
    }
    const ggml_tensor * q = dst->src[0];

    const int64_t DK = dst->src[1]->ne[0];
    const int64_t DV = dst->src[2]->ne[0];

    // Each thread needs partial results [M, S, VKQ] for a block of rows, and for the sums of these rows. For a single
    // token, the partial results of all chunks are stored, too.
    const int64_t n_partials = 2*BLOCK_Q*n_threads + (q->ne[1] == 1 ? q->ne[2]*n_chunks_of(dst) : 0);

    return sizeof(float)*(n_partials*(2 + DV) + n_threads*block_scratch_size(DK, DV));
}

// Returns the number of rows of q that share a KV head. Each cell of the head is read once for a block of such rows.
static int64_t n_shared_rows(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];

    return k->ne[2] == v->ne[2] ? q->ne[1]*(q->ne[2]/k->ne[2]) : q->ne[1];
}

// Adds the partial result of a chunk of KV cells to the sum over the earlier chunks. A partial result with S = 0 (no
// visible cell) changes nothing.
static void add_partial(int64_t DV, float * sum, const float * partial) {
    if (partial[1] == 0.0f) {
        return;
    }
    if (sum[1] == 0.0f) {
        memcpy(sum, partial, (2 + DV)*sizeof(float));
        return;
    }
    const float M         = fmaxf(sum[0], partial[0]);
    const float scale_old = expf(sum[0]     - M);
    const float scale_new = expf(partial[0] - M);

    for (int64_t d = 2; d < 2 + DV; ++d) {
        sum[d] = sum[d]*scale_old + partial[d]*scale_new;
    }
    sum[1] = sum[1]*scale_old + partial[1]*scale_new;
    sum[0] = M;
}

// Normalizes the result of row ir of q and writes it to dst, permuted to (0, 2, 1, 3).
static void write_result(ggml_tensor * dst, int64_t ir, float * sum) {
    const int64_t DV   = dst->ne[0];
    const int64_t neq1 = dst->src[0]->ne[1];
    const int64_t neq2 = dst->src[0]->ne[2];

    if (sum[1] == 0.0f) {
        memset(sum + 2, 0, DV*sizeof(float));
    } else {
        ggml_vec_scale_f32(DV, sum + 2, 1.0f/sum[1]);
    }

    const int64_t i3 = ir/(neq2*neq1);
    const int64_t i2 = ir/neq1%neq2;
    const int64_t i1 = ir%neq1;

    memcpy((char *) dst->data + (i3*dst->ne[2]*dst->ne[1] + i2 + i1*dst->ne[1])*dst->nb[1], sum + 2, dst->nb[1]);
}

// Computes rows ir0 to ir1 of q, one chunk of KV cells after the other.
static void attend_rows(const ggml_compute_params * params, ggml_tensor * dst, int64_t ir0, int64_t ir1) {
    const int64_t DK   = dst->src[1]->ne[0];
    const int64_t DV   = dst->src[2]->ne[0];
    const int64_t nek1 = dst->src[1]->ne[1];

    const int64_t n_shared     = n_shared_rows(dst);
    const int64_t partial_size = 2 + DV;

    // The partial results and their sums are in the work space, after the scratch of attend_block().
    float * partials = (float *) params->wdata +
        params->nth*block_scratch_size(DK, DV) + params->ith*2*BLOCK_Q*partial_size;
    float * sums     = partials + BLOCK_Q*partial_size;

    while (ir0 < ir1) {
        const int64_t n = std::min(std::min<int64_t>(ir1 - ir0, BLOCK_Q), n_shared - ir0%n_shared);

        for (int64_t r = 0; r < n; ++r) {
            sums[r*partial_size + 1] = 0.0f;
        }
        for (int64_t ic = 0; ic < nek1; ic += CHUNK_KV) {
            attend_block(params, dst, ir0, ir0 + n, ic, std::min(ic + CHUNK_KV, nek1), partials, partial_size);
            for (int64_t r = 0; r < n; ++r) {
                add_partial(DV, sums + r*partial_size, partials + r*partial_size);
            }
        }
        for (int64_t r = 0; r < n; ++r) {
            write_result(dst, ir0 + r, sums + r*partial_size);
        }
        ir0 += n;
    }
}

// Computes the rows of a single token: one for each query head. Not only the rows but also the chunks of KV cells are
// split among the threads. The result has the same bits as that of attend_rows().
static void attend_single_token(const ggml_compute_params * params, ggml_tensor * dst) {
    const int64_t DK   = dst->src[1]->ne[0];
    const int64_t DV   = dst->src[2]->ne[0];
    const int64_t nek1 = dst->src[1]->ne[1];
    const int64_t nr   = dst->src[0]->ne[2];

    const int ith = params->ith;
    const int nth = params->nth;

    const int64_t n_chunks     = n_chunks_of(dst);
    const int64_t n_shared     = n_shared_rows(dst);
    const int64_t partial_size = 2 + DV;

    // After the scratch of attend_block(), the work space has a sum for each thread, then the partial results, as
    // [row][chunk].
    float * base     = (float *) params->wdata + nth*block_scratch_size(DK, DV);
    float * sum      = base + ith*partial_size;
    float * partials = base + nth*partial_size;

    // Compute as many heads together as possible, but leave work for each thread.
    int64_t n_rows = std::min<int64_t>(n_shared, BLOCK_Q);
    while (n_rows > 1 && nr/n_shared*((n_shared + n_rows - 1)/n_rows)*n_chunks < nth) {
        n_rows--;
    }
    const int64_t n_sets = (n_shared + n_rows - 1)/n_rows; // number of sets of rows in a KV head

    // Order of the work: all rows over the first chunk, then all rows over the next chunk.
    const int64_t n  = nr/n_shared*n_sets*n_chunks;
    const int64_t dn = (n + nth - 1)/nth;

    for (int64_t i = dn*ith; i < std::min(dn*(ith + 1), n); ++i) {
        const int64_t is  = i%(nr/n_shared*n_sets);
        const int64_t ic  = i/(nr/n_shared*n_sets);
        const int64_t ir0 = is/n_sets*n_shared + is%n_sets*n_rows;
        const int64_t ir1 = std::min(ir0 + n_rows, (is/n_sets + 1)*n_shared);

        attend_block(params, dst, ir0, ir1, ic*CHUNK_KV, std::min((ic + 1)*CHUNK_KV, nek1),
            partials + (ir0*n_chunks + ic)*partial_size, n_chunks*partial_size);
    }

    ggml_barrier(params->threadpool);

    for (int64_t ir = ith; ir < nr; ir += nth) {
        sum[1] = 0.0f;
        for (int64_t ic = 0; ic < n_chunks; ++ic) {
            add_partial(DV, sum, partials + (ir*n_chunks + ic)*partial_size);
        }
        write_result(dst, ir, sum);
    }
}

bool compute_flash_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!is_supported(dst)) {
        return false;
    }
    const ggml_tensor * q = dst->src[0];

    if (q->ne[1] == 1 && q->ne[3] == 1 && dst->src[1]->ne[1] >= 512) {
        attend_single_token(params, dst);
        return true;
    }

    const int     nth      = params->nth;
    const int64_t nr       = q->ne[1]*q->ne[2]*q->ne[3];
    const int64_t n_shared = n_shared_rows(dst);

    // The rows are split into four pieces per thread. But rows that share their cells stay in one piece, if each thread
    // gets a piece anyway.
    const auto    div_up = [](int64_t n, int64_t parts) { return (n + parts - 1)/parts; };
    const int64_t set_size = div_up(n_shared, div_up(n_shared, BLOCK_Q));

    int64_t size = nth == 1 || ggml_is_numa() ?
        div_up(nr, nth) : std::max(div_up(nr, 4*nth), std::min(div_up(nr, nth), set_size));
    if (size > set_size) {
        size = div_up(size, set_size)*set_size;
    }
    const int64_t n_pieces = div_up(nr, size);

    share_out(params, n_pieces, [&](int64_t i) {
        attend_rows(params, dst, size*i, std::min(size*(i + 1), nr));
    });
    return true;
}

}  // namespace pymtp
