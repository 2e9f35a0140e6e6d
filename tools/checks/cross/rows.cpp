// Compares rows with single rows, to the bit: products with weights of each type, repacked and as they are, and attention.
// Products are also compared with those of the weights in F32 and of llama.cpp's own code. Prints a line for each, with
// the numbers of rows that differ, and ends with 1 if there are any. One thread.
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

ggml_backend_buffer_type_t ggml_backend_cpu_repack_buffer_type(void); // of ggml-cpu

struct free_context { void operator()(ggml_context * ctx) const { ggml_free(ctx); } };
struct free_buffer  { void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); } };
using context_ptr = std::unique_ptr<ggml_context, free_context>;
using buffer_ptr  = std::unique_ptr<ggml_backend_buffer, free_buffer>;

static ggml_backend_t cpu;
static int n_faults = 0;

// Normal ones, further ones with each call; in each run the same.
static std::vector<float> random_numbers(size_t n) {
    static std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(n);
    for (float & x : numbers) {
        x = normal(generator);
    }
    return numbers;
}

static context_ptr make_context() {
    return context_ptr(ggml_init({16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*.no_alloc =*/ true}));
}

// Computes the node after fill() has written the leaves.
static std::vector<float> compute(ggml_context * ctx, ggml_tensor * node, const std::function<void()> & fill) {
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, node);
    const buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx, cpu));
    fill();
    ggml_backend_graph_compute(cpu, graph);
    const float * y = (const float *) node->data;
    return std::vector<float>(y, y + ggml_nelements(node));
}

// rows(first, n): those of n rows from one on, side by side. Returns the single rows.
static std::vector<float> compare(
        const std::string & what, int most, const std::vector<int> & counts, const std::function<std::vector<float>(int, int)> & rows) {
    std::vector<float> alone;
    for (int i = 0; i < most; ++i) {
        const std::vector<float> row = rows(i, 1);
        alone.insert(alone.end(), row.begin(), row.end());
    }
    std::string differ;
    for (const int n : counts) {
        const std::vector<float> together = rows(0, n);
        if (memcmp(together.data(), alone.data(), together.size()*sizeof(float)) != 0) {
            differ += " " + std::to_string(n);
        }
    }
    n_faults += !differ.empty();
    printf("%-32s %s%s\n", what.c_str(), differ.empty() ? "same bits" : "differ:", differ.c_str());
    fflush(stdout);
    return alone;
}

// Quantizes rows. Superblocks take long under emulation, so only some rows are quantized, and the others are copies.
static void quantize(ggml_type type, const std::vector<float> & from, void * to, int64_t n_rows, int64_t k) {
    const std::vector<float> importance(k, 1.0f);
    const int64_t n_own = ggml_blck_size(type) == 256 ? std::min<int64_t>(n_rows, 5) : n_rows;
    ggml_quantize_chunk(type, from.data(), to, 0, n_own, k, importance.data());
    const size_t size = ggml_row_size(type, k);
    for (int64_t i = n_own; i < n_rows; ++i) {
        memcpy((char *) to + i*size, (char *) to + (i - n_own)*size, size);
    }
}

static void compare_products(ggml_type type, int64_t k, int64_t m, bool repacked) {
    const int most = 70;

    const context_ptr ctx = make_context();
    ggml_tensor * weights = ggml_new_tensor_2d(ctx.get(), type, k, m);
    const buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(
        ctx.get(), repacked ? ggml_backend_cpu_repack_buffer_type() : ggml_backend_cpu_buffer_type()));
    if (repacked && !weights->extra) {
        return; // of a type that is not
    }
    std::vector<char> data(ggml_nbytes(weights));
    quantize(type, random_numbers(k*m), data.data(), m, k);
    ggml_backend_tensor_set(weights, data.data(), 0, data.size());
    const std::vector<float> x = random_numbers(k*most);

    const std::string what = std::string(ggml_type_name(type)) + ", " + std::to_string(m) + " rows of " + std::to_string(k)
        + (repacked ? ", repacked" : "");
    const std::vector<int> counts = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33, 64, 65, 70};
    const auto multiply = [&](int first, int n) {
        const context_ptr own = make_context();
        ggml_tensor * columns = ggml_new_tensor_2d(own.get(), GGML_TYPE_F32, k, n);
        ggml_tensor * product = ggml_mul_mat(own.get(), weights, columns);
        return compute(own.get(), product, [&] { memcpy(columns->data, x.data() + first*k, n*k*sizeof(float)); });
    };
    const std::vector<float> alone = compare(what, most, counts, multiply);

    // llama.cpp's own code adds up the same numbers in another order; its rows are taken one by one
    std::vector<float> llama;
    ggml_backend_cpu_set_use_ref(cpu, true);
    for (int j = 0; j < most; ++j) {
        const std::vector<float> row = multiply(j, 1);
        llama.insert(llama.end(), row.begin(), row.end());
    }
    ggml_backend_cpu_set_use_ref(cpu, false);

    std::vector<float> w(k);
    double from_llama = 0.0; // relative to the sum of the magnitudes of the products
    double farthest = 0.0; // the products of random numbers are some tens; rounding x to 8 bits changes them by some tenths
    for (int64_t i = 0; i < m; ++i) {
        const char * row = data.data() + i*ggml_row_size(type, k);
        type == GGML_TYPE_F32 ? (void) memcpy(w.data(), row, k*sizeof(float)) : ggml_get_type_traits(type)->to_float(row, w.data(), k);
        for (int j = 0; j < most; ++j) {
            double sum = 0.0;
            double magnitudes = 0.0;
            for (int64_t l = 0; l < k; ++l) {
                sum += double(w[l])*x[j*k + l];
                magnitudes += std::fabs(double(w[l])*x[j*k + l]);
            }
            farthest = std::fmax(farthest, std::fabs(sum - alone[j*m + i]));
            from_llama = std::fmax(from_llama, std::fabs(double(llama[j*m + i]) - alone[j*m + i])/magnitudes);
        }
    }
    if (!(farthest < 2.0)) {
        ++n_faults;
        printf("%-32s is wrong by %.2f\n", what.c_str(), farthest);
    }
    // with i8mm and GCC 12, llama.cpp's own result for an odd block at the end of a row of Q5_0 is wrong
    if (ggml_is_quantized(type) && k % 64 == 0 && !(from_llama < 1e-6)) {
        ++n_faults;
        printf("%-32s is not llama.cpp's by %.1e\n", what.c_str(), from_llama);
    }
}

// Each row uses two of four experts.
static void compare_experts(ggml_type type) {
    const int64_t k = 768, m = 9, n_experts = 4, n_used = 2;
    const int     most = 33;

    const std::vector<float> w = random_numbers(k*m*n_experts);
    const std::vector<float> x = random_numbers(k*most);
    std::vector<char> data(ggml_row_size(type, k)*m*n_experts);
    quantize(type, w, data.data(), m*n_experts, k);

    compare(std::string(ggml_type_name(type)) + ", experts", most, {2, 3, 4, 8, 9, 33}, [&](int first, int n) {
        const context_ptr ctx = make_context();
        ggml_tensor * weights = ggml_new_tensor_3d(ctx.get(), type, k, m, n_experts);
        ggml_tensor * columns = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, k, 1, n);
        ggml_tensor * ids     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, n_used, n);
        ggml_tensor * product = ggml_mul_mat_id(ctx.get(), weights, columns, ids);
        return compute(ctx.get(), product, [&] {
            memcpy(weights->data, data.data(), data.size());
            memcpy(columns->data, x.data() + first*k, n*k*sizeof(float));
            for (int i = 0; i < n; ++i) {
                ((int32_t *) ids->data)[n_used*i]     = (first + i)%n_experts;
                ((int32_t *) ids->data)[n_used*i + 1] = (first + i + 1)%n_experts;
            }
        });
    });
}

static void compare_attention(ggml_type type, int64_t d) {
    const int64_t n_heads = 4, n_kv_heads = 2, n_cells = 1280, n_past = 1000;
    const int     most = 33;

    const std::vector<float> k = random_numbers(d*n_cells*n_kv_heads);
    const std::vector<float> v = random_numbers(d*n_cells*n_kv_heads);
    const std::vector<float> q = random_numbers(d*n_heads*most);

    const std::string what = std::string("attention over ") + ggml_type_name(type) + ", " + std::to_string(d);
    compare(what, most, {2, 3, 4, 5, 8, 9, 16, 33}, [&](int first, int n) {
        const context_ptr ctx = make_context();
        ggml_tensor * queries = ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F32, d, n, n_heads, 1);
        ggml_tensor * keys    = ggml_new_tensor_4d(ctx.get(), type, d, n_cells, n_kv_heads, 1);
        ggml_tensor * values  = ggml_new_tensor_4d(ctx.get(), type, d, n_cells, n_kv_heads, 1);
        ggml_tensor * mask    = ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F16, n_cells, n, 1, 1);
        ggml_tensor * found   = ggml_flash_attn_ext(ctx.get(), queries, keys, values, mask, 1.0f/sqrtf(d), 0.0f, 0.0f);
        return compute(ctx.get(), found, [&] {
            quantize(type, k, keys->data,   n_cells*n_kv_heads, d);
            quantize(type, v, values->data, n_cells*n_kv_heads, d);
            for (int64_t i = 0; i < n; ++i) {
                for (int64_t head = 0; head < n_heads; ++head) {
                    memcpy((char *) queries->data + i*queries->nb[1] + head*queries->nb[2],
                        q.data() + ((first + i)*n_heads + head)*d, d*sizeof(float));
                }
                for (int64_t cell = 0; cell < n_cells; ++cell) {
                    ((ggml_fp16_t *) mask->data)[i*n_cells + cell] =
                        ggml_fp32_to_fp16(cell <= n_past + first + i ? 0.0f : -INFINITY);
                }
            }
        });
    });
}

int main() {
    cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL,
            GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS, GGML_TYPE_Q4_1,
            GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4, GGML_TYPE_Q1_0, GGML_TYPE_Q2_0, GGML_TYPE_TQ1_0,
            GGML_TYPE_TQ2_0, GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S,
            GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S}) {
        compare_products(type, 768, 27, false);
        compare_products(type, 768, 32, false);
        compare_products(type, 768, 32, true);
        if (ggml_is_quantized(type) && ggml_blck_size(type) < 256) {
            compare_products(type, 768 + ggml_blck_size(type), 27, false);
        }
        compare_experts(type);
    }
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
        compare_attention(type, 64);
        compare_attention(type, 256);
    }
    ggml_backend_free(cpu);
    printf("%d faults\n", n_faults);
    return n_faults > 0;
}
