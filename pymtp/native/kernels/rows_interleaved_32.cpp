// Kernels for the repacked types with blocks of 32: Q4_0, IQ4_NL, MXFP4. Activations are Q8_0.

#include "rows_interleaved.h"

#if defined(PYMTP_ROWS_SIMD)
#include "quants.h"
#include "repack.h"
#include "simd-mappings.h"

#include <cstring>

namespace pymtp {

using namespace simd;

namespace {

// Nibbles become values from 0 on, `offset` too large. The excess of the sums is that of the activations times offset.

struct q4_0 {
    typedef block_q4_0x8 block;
    static constexpr int offset = 8;

    static ivec value(ivec nibbles) { return bits_xor(nibbles, repeat1(8)); }  // signed in the repacked weights
    static fvec scales(const block & b, int part) { return fload_half_twice(b.d + part*COLUMNS); }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

struct iq4_nl {
    typedef block_iq4_nlx8 block;

    static ivec values() {
        return repeat16(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    }

    static fvec scales(const block & b, int part) { return fload_half_twice(b.d + part*COLUMNS); }
#if defined(PYMTP_ROWS_VNNI)
    static constexpr int offset = 128;

    static ivec value(ivec nibbles) {
        return lookup16(bits_xor(values(), repeat1(-128)), nibbles);
    }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return sums; }
#else
    static constexpr int offset = 0;  // larger values would not fit 16 bits when multiplied

    static ivec value(ivec nibbles) { return lookup16(values(), nibbles); }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot_wide(sums, abs1(w), sign1(a, w)); }
    static ivec sums_of_32(ivec sums) { return sums; }
#endif
};

struct mxfp4 {
    typedef block_mxfp4x8 block;
    static constexpr int offset = 12;

    static ivec value(ivec nibbles) {
        return lookup16(repeat16(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)), nibbles);
    }
    static fvec scales(const block & b, int part) {
        float d[COLUMNS];
        for (int i = 0; i < COLUMNS; ++i) {
            d[i] = GGML_CPU_E8M0_TO_FP32_HALF(b.e[part*COLUMNS + i]);
        }
        return fload_twice(d);
    }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

// A block of a prepared row.
struct alignas(8) activations {
    int8_t qs[QK8_0];
    char   excess[8];
    float  d;
};

size_t prepared_size(int64_t k) { return k/QK8_0*sizeof(activations); }

// Writes -offset times the sums of the quants that each lane of a vector sees.
void store_excess(int offset, const int8_t * qs, char * excess) {
    const __m128i ones = _mm_set1_epi8(1);
    const __m128i q0   = _mm_loadu_si128((const __m128i *) qs);
    const __m128i q1   = _mm_loadu_si128((const __m128i *) qs + 1);

    __m128i sums = _mm_add_epi16(_mm_maddubs_epi16(ones, q0), _mm_maddubs_epi16(ones, q1));
    sums = _mm_add_epi16(sums, _mm_unpackhi_epi64(sums, sums));
#if defined(PYMTP_ROWS_VNNI)
    sums = _mm_madd_epi16(sums, _mm_set1_epi16(-offset));
#else
    sums = _mm_mullo_epi16(sums, _mm_set1_epi16(-offset));
#endif
    _mm_storel_epi64((__m128i *) excess, sums);
}

template <typename F> void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    constexpr int64_t N = 32;
    block_q8_0 blocks[N];

    for (int64_t i0 = k0; i0 < k1; i0 += N*QK8_0) {
        const int64_t n = std::min(N*QK8_0, k1 - i0);
        quantize_row_q8_0(x + i0, blocks, n);

        for (int64_t i = 0; i < n/QK8_0; ++i) {
            activations & a = ((activations *) prepared)[i0/QK8_0 + i];
            memcpy(a.qs, blocks[i].qs, sizeof(a.qs));
            store_excess(F::offset, a.qs, a.excess);
            a.d = GGML_CPU_FP16_TO_FP32(blocks[i].d);
        }
    }
}

template <typename F> struct interleaved {
    template <int R>
    static void run(int64_t k, const char * w, const char * const * x, float * const * y) {
        // With AVX2, the two parts of a block in turn as long as all sums fit into 16 registers.
        constexpr int P = R <= 2 ? PARTS : 1;
        for (int part = 0; part < PARTS; part += P) {
            multiply<R, P>(k, (const typename F::block *) w, part, x, y);
        }
    }

    template <int R, int P>
    static void multiply(
        int64_t k, const typename F::block * blocks, int first, const char * const * x, float * const * y) {
        fvec acc[P][R];
        for (int p = 0; p < P; ++p) {
            std::fill(acc[p], acc[p] + R, fzero());
        }
        for (int64_t ib = 0; ib < k/QK8_0; ++ib) {
            prefetch<sizeof(blocks[ib])>(&blocks[ib]);
            for (int p = 0; p < P; ++p) {
                const char * qs = (const char *) blocks[ib].qs + (first + p)*BYTES;

                const ivec q0 = load(qs);
                const ivec q1 = load(qs + 64);
                const ivec w0 = F::value(low4(q0));
                const ivec w1 = F::value(low4(q1));
                const ivec w2 = F::value(high4(q0));
                const ivec w3 = F::value(high4(q1));
                const fvec d  = F::scales(blocks[ib], first + p);

                for (int r = 0; r < R; ++r) {
                    const activations & a = ((const activations *) x[r])[ib];

                    ivec sums = repeat8_at(a.excess);
                    sums = F::add_products(sums, w0, repeat8_at(a.qs));
                    sums = F::add_products(sums, w1, repeat8_at(a.qs + 8));
                    sums = F::add_products(sums, w2, repeat8_at(a.qs + 16));
                    sums = F::add_products(sums, w3, repeat8_at(a.qs + 24));
                    acc[p][r] = fma(to_float(F::sums_of_32(sums)), fmul(d, frepeat(a.d)), acc[p][r]);
                }
            }
        }
        for (int p = 0; p < P; ++p) {
            for (int r = 0; r < R; ++r) {
                fstore_pairs(y[r] + (first + p)*COLUMNS, acc[p][r]);
            }
        }
    }
};

template <typename F> constexpr rows_kernel kernel_of = {
    INTERLEAVED, prepared_size, prepare<F>, multiply_interleaved<interleaved<F>>, ANY_ROWS};

}  // namespace

const rows_kernel rows_q4_0x8   = kernel_of<q4_0>;
const rows_kernel rows_iq4_nlx8 = kernel_of<iq4_nl>;
const rows_kernel rows_mxfp4x8  = kernel_of<mxfp4>;

}  // namespace pymtp

#endif
