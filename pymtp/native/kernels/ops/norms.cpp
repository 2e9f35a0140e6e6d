// RMS_NORM, alone or fused with the MUL after it, with eight independent sums of squares.
//
// llama.cpp adds all squares to one double, so each addition waits for the previous one. With llama.cpp's code, a
// verification of eight rows of a 0.8B takes 0.9% longer, and one of 64 rows 1.6%.

#include "kernels.h"

#include <cmath>

namespace pymtp {

static double sum_of_squares(int64_t n, const float * x) {
    double sum[8] = {};

    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int l = 0; l < 8; l++) {
            sum[l] += (double) (x[i + l]*x[i + l]);
        }
    }
    for (; i < n; i++) {
        sum[0] += (double) (x[i]*x[i]);
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static bool rows_are_f32(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
}

static char * row_of(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) t->data + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3];
}

// Computes dst, the rows of the node `norm`, multiplied by the rows of w unless w is null.
static bool compute_rows(
    const ggml_compute_params * params, const ggml_tensor * norm, const ggml_tensor * w, ggml_tensor * dst) {
    const ggml_tensor * src = norm->src[0];
    const int64_t       n   = norm->ne[0];

    if (!rows_are_f32(src) || !rows_are_f32(dst) || (w && (!rows_are_f32(w) || w->ne[0] != n))) {
        return false;
    }
    const float eps = ggml_get_op_params_f32(norm, 0);
    for (int64_t i3 = 0; i3 < src->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < src->ne[2]; i2++) {
            for (int64_t i1 = params->ith; i1 < src->ne[1]; i1 += params->nth) {
                const float * x     = (const float *) row_of(src, i1, i2, i3);
                const float * wr    = w ? (const float *) row_of(w, i1%w->ne[1], i2%w->ne[2], i3%w->ne[3]) : nullptr;
                float *       y     = (float *) row_of(dst, i1, i2, i3);
                const float   mean  = sum_of_squares(n, x)/n;
                const float   scale = 1.0f/sqrtf(mean + eps);
                for (int64_t i = 0; i < n; i++) {
                    y[i] = wr ? x[i]*scale*wr[i] : x[i]*scale;
                }
            }
        }
    }
    return true;
}

bool compute_rms_norm(const ggml_compute_params * params, ggml_tensor * dst) {
    return compute_rows(params, dst, nullptr, dst);
}

int compute_rms_norm_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params) {
    const ggml_op ops[] = { GGML_OP_RMS_NORM, GGML_OP_MUL };
    if (!ggml_can_fuse(cgraph, node_n, ops, 2)) {
        return 0;
    }
    const ggml_tensor * norm = cgraph->nodes[node_n];
    ggml_tensor *       mul  = cgraph->nodes[node_n + 1];
    const ggml_tensor * w    = mul->src[0] == norm ? mul->src[1] : mul->src[0];

    return compute_rows(params, norm, w, mul) ? 2 : 0;
}

}  // namespace pymtp
