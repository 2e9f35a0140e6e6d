// What products with weights of K-quants that lie as in the file cost: the time of llama.cpp's vec_dot, called as its mul_mat calls
// it, relative to that of ggml_mul_mat here. Above 1 ours is faster. Processor time of one thread, the least of several.
#include "random_numbers.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

static constexpr int64_t K = 1024, M = 98; // llama.cpp repacks no matrix of 98 rows
static constexpr int64_t TILE = 16;        // of its mul_mat

static double seconds(const std::function<void()> & work, int repeats) {
    const clock_t begin = clock();
    for (int i = 0; i < repeats; ++i) {
        work();
    }
    return double(clock() - begin)/CLOCKS_PER_SEC;
}

static void with_vec_dot(ggml_type type, const char * w, const std::vector<float> & x, int64_t n, std::vector<float> & y) {
    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(type);
    const ggml_type prepared = traits->vec_dot_type;
    const size_t w_row = ggml_row_size(type, K), x_row = ggml_row_size(prepared, K);
    std::vector<char> q(x_row*n);
    for (int64_t j = 0; j < n; ++j) {
        ggml_get_type_traits_cpu(prepared)->from_float(x.data() + j*K, q.data() + j*x_row, K);
    }
    const int64_t at_once = n % 2 == 0 ? traits->nrows : 1;
    for (int64_t i0 = 0; i0 < M; i0 += TILE) {
        for (int64_t j0 = 0; j0 < n; j0 += TILE) {
            for (int64_t j = j0; j < std::min(n, j0 + TILE); j += at_once) {
                for (int64_t i = i0; i < std::min(M, i0 + TILE); i += at_once) {
                    float s[4];
                    traits->vec_dot(K, s, at_once, w + i*w_row, w_row, q.data() + j*x_row, x_row, at_once);
                    y[j*M + i] = s[0];
                    if (at_once == 2) {
                        y[j*M + i + 1]       = s[1];
                        y[(j + 1)*M + i]     = s[2];
                        y[(j + 1)*M + i + 1] = s[3];
                    }
                }
            }
        }
    }
}

// Whether both have the same products, but for the last bits.
static bool compare(ggml_backend_t cpu, ggml_type type, int64_t n) {
    ggml_context * ctx = ggml_init({8*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*.no_alloc =*/ true});
    ggml_tensor * weights = ggml_new_tensor_2d(ctx, type, K, M);
    ggml_tensor * columns = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, K, n);
    ggml_tensor * product = ggml_mul_mat(ctx, weights, columns);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, product);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);

    const std::vector<float> importance(K, 1.0f), x = random_numbers(K*n);
    ggml_quantize_chunk(type, random_numbers(K*M).data(), weights->data, 0, M, K, importance.data());
    ggml_backend_tensor_set(columns, x.data(), 0, ggml_nbytes(columns));

    std::vector<float> y(M*n);
    double ours = 1e9, theirs = 1e9;
    const int repeats = std::max<int64_t>(1, 64/n);
    for (int i = 0; i < 6; ++i) {
        ours   = std::min(ours,   seconds([&] { ggml_backend_graph_compute(cpu, graph); }, repeats));
        theirs = std::min(theirs, seconds([&] { with_vec_dot(type, (const char *) weights->data, x, n, y); }, repeats));
    }
    float farthest = 0.0f;
    for (int64_t i = 0; i < M*n; ++i) {
        farthest = std::max(farthest, std::fabs(((const float *) product->data)[i] - y[i]));
    }
    printf(" %7.2f", theirs/ours);
    fflush(stdout);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return farthest < 1e-3f;
}

int main() {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    bool fine = true;
    const int64_t counts[] = {1, 2, 3, 4, 8, 16, 33, 64, 128};
    printf("rows  ");
    for (const int64_t n : counts) {
        printf(" %7d", (int) n);
    }
    for (const ggml_type type : {GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS}) {
        printf("\n%-6s", ggml_type_name(type));
        for (const int64_t n : counts) {
            fine &= compare(cpu, type, n);
        }
    }
    printf("\n");
    ggml_backend_free(cpu);
    return fine ? 0 : 1;
}
