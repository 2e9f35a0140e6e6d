// RMS_NORM (alone, or fused with the MUL after it) and L2_NORM, with eight independent sums of squares.
//
// llama.cpp adds all squares to one double, so each addition waits for the previous one. With llama.cpp's code, norms
// and short convolutions (delta_net/ssm_conv.cpp) took a tenth of the time of a verification of drafts, for a small
// model.

#include "kernels.h"
#include "vec.h"

#include <cmath>
#include <cstring>

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

// Calls f(x, y, i1, i2, i3) for each row that this thread computes. x and y point to the row in src and in dst; i1, i2
// and i3 are the indexes of the row.
template <typename F>
static void for_each_row(const ggml_compute_params * params, const ggml_tensor * src, const ggml_tensor * dst, F f) {
    for (int64_t i3 = 0; i3 < src->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < src->ne[2]; i2++) {
            for (int64_t i1 = params->ith; i1 < src->ne[1]; i1 += params->nth) {
                f((const float *) ((const char *) src->data + i1*src->nb[1] + i2*src->nb[2] + i3*src->nb[3]),
                  (float *) ((char *) dst->data + i1*dst->nb[1] + i2*dst->nb[2] + i3*dst->nb[3]), i1, i2, i3);
            }
        }
    }
}

static bool rows_are_f32(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
}

static float rms_scale(const ggml_tensor * norm, const float * x) {
    const float eps  = ggml_get_op_params_f32(norm, 0);
    const float mean = sum_of_squares(norm->ne[0], x)/norm->ne[0];
    return 1.0f/sqrtf(mean + eps);
}

bool compute_rms_norm(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];

    if (!rows_are_f32(src) || !rows_are_f32(dst)) {
        return false;
    }
    for_each_row(params, src, dst, [dst](const float * x, float * y, int64_t, int64_t, int64_t) {
        const float scale = rms_scale(dst, x);
        memcpy(y, x, dst->ne[0]*sizeof(float));
        ggml_vec_scale_f32(dst->ne[0], y, scale);
    });
    return true;
}

int compute_rms_norm_fused(const ggml_cgraph * cgraph, int node_n, const ggml_compute_params * params) {
    const ggml_op ops[] = { GGML_OP_RMS_NORM, GGML_OP_MUL };
    if (!ggml_can_fuse(cgraph, node_n, ops, 2)) {
        return 0;
    }
    const ggml_tensor * norm = cgraph->nodes[node_n];
    const ggml_tensor * mul  = cgraph->nodes[node_n + 1];
    const ggml_tensor * w    = mul->src[0] == norm ? mul->src[1] : mul->src[0];

    if (!rows_are_f32(norm->src[0]) || !rows_are_f32(mul) || !rows_are_f32(w) || w->ne[0] != norm->ne[0]) {
        return 0;
    }
    const int64_t n = norm->ne[0];
    for_each_row(params, norm->src[0], mul, [&](const float * x, float * y, int64_t i1, int64_t i2, int64_t i3) {
        const float   scale = rms_scale(norm, x);
        const float * wr    = (const float *) ((const char *) w->data +
            i1%w->ne[1]*w->nb[1] + i2%w->ne[2]*w->nb[2] + i3%w->ne[3]*w->nb[3]);
        for (int64_t i = 0; i < n; i++) {
            y[i] = x[i]*scale*wr[i];
        }
    });
    return 2;
}

bool compute_l2_norm(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];

    if (!rows_are_f32(src) || !rows_are_f32(dst)) {
        return false;
    }
    const float eps = ggml_get_op_params_f32(dst, 0);

    for_each_row(params, src, dst, [dst, eps](const float * x, float * y, int64_t, int64_t, int64_t) {
        const double sum = sum_of_squares(dst->ne[0], x);
        memcpy(y, x, dst->ne[0]*sizeof(float));
        ggml_vec_scale_f32(dst->ne[0], y, 1.0f/fmaxf(sqrtf(sum), eps));
    });
    return true;
}

}  // namespace pymtp
