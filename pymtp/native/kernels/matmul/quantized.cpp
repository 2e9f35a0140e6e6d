// MUL_MAT and MUL_MAT_ID with quantized weights, by the kernels of rows_kernel.h.
//
// The threads first quantize the rows of src1 into the work space. Then they multiply pieces of the weights. Each piece
// is multiplied by all rows that use it: the rows of all planes of src1 that share a plane of src0, or the rows that
// use the same expert.

#include "matmul/rows_kernel.h"

#include <algorithm>

namespace pymtp {

const rows_kernel * rows_kernel_of(const ggml_tensor * weights) {
    return weights->extra ? repacked_kernel_of(weights) : plain_kernel_of(weights);
}

static const rows_kernel * kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    if (src1->type != GGML_TYPE_F32 || src1->nb[0] != sizeof(float) || dst->nb[0] != sizeof(float) ||
            src0->nb[0] != ggml_type_size(src0->type)) {
        return nullptr;
    }
    // llama.cpp multiplies by a Hadamard matrix without reading the matrix, and has no experts in four dimensions.
    if (dst->op == GGML_OP_MUL_MAT ? ggml_get_op_params_i32(dst, 1) == GGML_HINT_SRC0_IS_HADAMARD :
            src0->ne[3] != 1 || src1->ne[3] != 1) {
        return nullptr;
    }
    const rows_kernel * kernel = rows_kernel_of(src0);
    if (!kernel || src0->ne[1] % kernel->row_multiple != 0) {
        return nullptr;
    }
    return src1->ne[dst->op == GGML_OP_MUL_MAT ? 1 : 2] <= kernel->max_rows ? kernel : nullptr;
}

// ── The work space ───────────────────────────────────────────────────────────────────────────────────────────────────

constexpr size_t ALIGNMENT = 64;

static size_t prepared_stride(const rows_kernel * kernel, const ggml_tensor * src1) {
    return GGML_PAD(kernel->prepared_size(src1->ne[0]), ALIGNMENT);
}

// The rows of dst, sorted by expert, for MUL_MAT_ID. These arrays are in the work space, after the prepared rows.
struct expert_rows {
    struct run {
        int32_t expert;
        int32_t first;
        int32_t n;
    };
    int32_t * order;    // indexes of the rows of dst, sorted by expert
    int32_t * counts;   // number of rows of each expert
    run     * runs;     // parts of `order` whose rows have the same expert
    int32_t * n_runs;  // number of runs, or -1 if ids holds an expert that does not exist

    // Places the arrays for n rows in `memory`, which must have size(n, n_experts) bytes.
    expert_rows(void * memory, int64_t n, int64_t n_experts) {
        n_runs = (int32_t *) memory;
        counts = n_runs + 1;
        order  = counts + n_experts;
        runs   = (run *) (order + n);
    }

    static size_t size(int64_t n, int64_t n_experts) {
        return (1 + n_experts + n)*sizeof(int32_t) + n*sizeof(run);
    }
};

size_t mul_mat_quantized_work_size(const ggml_tensor * dst) {
    const rows_kernel * kernel = kernel_for(dst);
    if (!kernel) {
        return 0;
    }
    const ggml_tensor * src1 = dst->src[1];
    size_t size = ALIGNMENT + ggml_nrows(src1)*prepared_stride(kernel, src1);
    if (dst->op == GGML_OP_MUL_MAT_ID) {
        size += expert_rows::size(dst->ne[1]*dst->ne[2], dst->src[0]->ne[2]);
    }
    return size;
}

static char * prepared_rows(const ggml_compute_params * params) {
    return (char *) GGML_PAD((uintptr_t) params->wdata, ALIGNMENT);
}

// Prepares the rows of src1. The elements are split evenly among the threads, so a thread may prepare only a part of a
// row.
static void prepare(const ggml_compute_params * params, const rows_kernel * kernel, const ggml_tensor * src1) {
    constexpr int64_t STEP = 256;  // a multiple of the block size of all types

    const int64_t k       = src1->ne[0];
    const int64_t n_steps = (k + STEP - 1)/STEP;
    const int64_t n_all   = n_steps*ggml_nrows(src1);
    const int64_t i1      = n_all*(params->ith + 1)/params->nth;

    for (int64_t i = n_all*params->ith/params->nth; i < i1; ) {
        const int64_t row   = i/n_steps;
        const int64_t first = i%n_steps;
        const int64_t last  = std::min(n_steps, first + i1 - i);

        kernel->prepare((const float *) row_at(src1, row), prepared_rows(params) + row*prepared_stride(kernel, src1), k,
            first*STEP, std::min(last*STEP, k));
        i += last - first;
    }
}

// ── Products ─────────────────────────────────────────────────────────────────────────────────────────────────────────

// Multiplies rows [i0, i1) of the weights by n rows of activations. row_of(r, &x, &y) must set x to prepared row r, and
// y to its row of dst.
template <typename F>
static void multiply(
    const rows_kernel * kernel, const ggml_tensor * src0, const char * w, int64_t i0, int64_t i1, int64_t n, F row_of) {
    const size_t nb01 = src0->nb[1];

    for (int64_t r0 = 0; r0 < n; r0 += ROWS_PER_CALL) {
        const int64_t nr = std::min(n - r0, ROWS_PER_CALL);

        const char * x[ROWS_PER_CALL];
        float      * y[ROWS_PER_CALL];
        for (int64_t r = 0; r < nr; ++r) {
            row_of(r0 + r, &x[r], &y[r]);
            y[r] += i0;
        }
        kernel->multiply(src0->ne[0], i1 - i0, w + i0*nb01, nb01, nr, x, y);
    }
}

// Splits n_matrices matrices of m rows into pieces, and calls piece(matrix, i0, i1) for rows [i0, i1) of a matrix. A
// thread that is done early takes more pieces.
template <typename F>
static void for_each_piece(const ggml_compute_params * params, int64_t n_matrices, int64_t m, int64_t tile, F piece) {
    const int64_t nth      = params->nth;
    const int64_t n_pieces_wanted = nth == 1 ? 1 : ggml_is_numa() ? nth : std::max<int64_t>(8*nth/n_matrices, 1);
    const int64_t size     = GGML_PAD((m + n_pieces_wanted - 1)/n_pieces_wanted, tile);
    const int64_t n_pieces = (m + size - 1)/size;

    for (int64_t i = params->ith; i < n_pieces*n_matrices; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t i0 = i%n_pieces*size;
        piece(i/n_pieces, i0, std::min(i0 + size, m));
    }
}

static void mul_mat(const ggml_compute_params * params, const rows_kernel * kernel, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    GGML_TENSOR_BINARY_OP_LOCALS

    // Each plane of src0 is multiplied by r2*r3 planes of src1.
    const int64_t r2 = ne12/ne02;
    const int64_t r3 = ne13/ne03;

    const size_t stride = prepared_stride(kernel, src1);
    const char * rows   = prepared_rows(params);

    for_each_piece(params, ne02*ne03, ne01, kernel->tile, [&](int64_t plane, int64_t i0, int64_t i1) {
        const int64_t i02 = plane%ne02;
        const int64_t i03 = plane/ne02;

        multiply(kernel, src0, (const char *) src0->data + i02*nb02 + i03*nb03, i0, i1, ne11*r2*r3,
            [&](int64_t r, const char ** x, float ** y) {
                const int64_t j1 = r%ne11;
                const int64_t j2 = i02*r2 + r/ne11%r2;
                const int64_t j3 = i03*r3 + r/ne11/r2;
                *x = rows + ((j3*ne12 + j2)*ne11 + j1)*stride;
                *y = (float *) ((char *) dst->data + j1*nb1 + j2*nb2 + j3*nb3);
            });
    });
}

static expert_rows expert_rows_of(
    const ggml_compute_params * params, const rows_kernel * kernel, const ggml_tensor * dst) {
    char * memory = prepared_rows(params) + ggml_nrows(dst->src[1])*prepared_stride(kernel, dst->src[1]);
    return expert_rows(memory, dst->ne[1]*dst->ne[2], dst->src[0]->ne[2]);
}

// Sorts the rows of dst by expert. If ids holds an expert that does not exist, sets n_runs to -1.
static void group_rows_by_expert(expert_rows c, const ggml_tensor * dst) {
    const ggml_tensor * ids = dst->src[2];

    const int64_t n_experts = dst->src[0]->ne[2];
    const int64_t n_used  = dst->ne[1];
    const int64_t n         = n_used*dst->ne[2];

    const auto expert_of = [&](int64_t i) {
        return *(const int32_t *) ((const char *) ids->data + i/n_used*ids->nb[1] + i%n_used*ids->nb[0]);
    };

    *c.n_runs = -1;
    std::fill(c.counts, c.counts + n_experts, 0);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t expert = expert_of(i);
        if (expert < 0 || expert >= n_experts) {
            return;
        }
        ++c.counts[expert];
    }
    int32_t first = 0;
    *c.n_runs = 0;
    for (int32_t expert = 0; expert < n_experts; ++expert) {
        const int32_t count = c.counts[expert];
        if (count > 0) {
            c.runs[(*c.n_runs)++] = {expert, first, count};
        }
        c.counts[expert] = first;  // from here on, the index in `order` of the expert's next row
        first += count;
    }
    for (int64_t i = 0; i < n; ++i) {
        c.order[c.counts[expert_of(i)]++] = i;
    }
}

static void mul_mat_id(const ggml_compute_params * params, const rows_kernel * kernel, ggml_tensor * dst) {
    const ggml_tensor * src0 = dst->src[0];
    const ggml_tensor * src1 = dst->src[1];

    const expert_rows c      = expert_rows_of(params, kernel, dst);
    GGML_ASSERT(*c.n_runs >= 0);  // must fail in all threads: else the others would wait at a barrier
    const size_t  stride = prepared_stride(kernel, src1);
    const char  * rows   = prepared_rows(params);

    for_each_piece(params, *c.n_runs, src0->ne[1], kernel->tile, [&](int64_t i, int64_t i0, int64_t i1) {
        const expert_rows::run & run = c.runs[i];

        multiply(kernel, src0, (const char *) src0->data + run.expert*src0->nb[2], i0, i1, run.n,
            [&](int64_t r, const char ** x, float ** y) {
                const int64_t j1 = c.order[run.first + r]%dst->ne[1];
                const int64_t j2 = c.order[run.first + r]/dst->ne[1];
                *x = rows + (j2*src1->ne[1] + j1%src1->ne[1])*stride;
                *y = (float *) ((char *) dst->data + j1*dst->nb[1] + j2*dst->nb[2]);
            });
    });
}

bool compute_mul_mat_quantized(const ggml_compute_params * params, ggml_tensor * dst) {
    const rows_kernel * kernel = kernel_for(dst);
    if (!kernel) {
        return false;
    }
    GGML_ASSERT(params->wsize >= mul_mat_quantized_work_size(dst));

    prepare(params, kernel, dst->src[1]);
    if (params->ith == 0) {
        if (dst->op == GGML_OP_MUL_MAT_ID) {
            group_rows_by_expert(expert_rows_of(params, kernel, dst), dst);
        }
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);

    if (dst->op == GGML_OP_MUL_MAT_ID) {
        mul_mat_id(params, kernel, dst);
    } else {
        mul_mat(params, kernel, dst);
    }
    return true;
}

}  // namespace pymtp
