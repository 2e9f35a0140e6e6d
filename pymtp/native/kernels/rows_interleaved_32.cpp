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

#if defined(PYMTP_ROWS_512)

constexpr int PIECE = 8;  // bytes of each row of the weights in a vector

// Pieces i of all rows.
ivec load_pieces(const void * qs, int i)  { return load((const char *) qs + i*BYTES); }
ivec repeat_piece(const void * x)         { return repeat8_at(x); }
fvec load_scales(const uint16_t * d)      { return fload_half_twice(d); }
fvec load_scales(const float * d)         { return fload_twice(d); }
void store_rows(float * y, fvec sums)     { fstore_pairs(y, sums); }

#else

// Halves of the 8 bytes, so that a vector has all rows and nothing is to be added up across lanes: 8 rows of activations
// take 0.86 of the time that vectors of 4 rows of the weights take (Q4_0, Zen 5), single rows 0.93.
//
// Without VNNI the arithmetic is the bound: a block of Q4_0 costs 28 vector operations to unpack and 20 for each row of
// activations (8 products, 8 sums, then to 32 bits, to floats, scale, add). Zen 5 does 3.5 of them in a cycle where products
// and sums alternate. So 8 rows take 54 cycles for 144 bytes, or 60 as compiled: GCC leaves 13 loads to a row.
constexpr int PIECE = 4;

// Lanes of 32 bits are rows 0, 1, 4, 5, 2, 3, 6, 7.
ivec load_pieces(const void * qs, int i) {
    const __m256 rows03 = _mm256_loadu_ps((const float *) qs + i/2*16);
    const __m256 rows47 = _mm256_loadu_ps((const float *) qs + i/2*16 + 8);
    return _mm256_castps_si256(i % 2 == 0 ? _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(2, 0, 2, 0)) :
                                            _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(3, 1, 3, 1)));
}

fvec swap_middle(fvec x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
}

ivec repeat_piece(const void * x)     { return repeat4_at(x); }
fvec load_scales(const uint16_t * d)  { return swap_middle(fload_half(d)); }
fvec load_scales(const float * d)     { return swap_middle(fload(d)); }
void store_rows(float * y, fvec sums) { fstore(y, swap_middle(sums)); }

#endif

// Nibbles become values from 0 on, `offset` too large. The excess of the sums is that of the activations times offset.

struct q4_0 {
    typedef block_q4_0x8 block;
    static constexpr int offset = 8;

    static ivec stored(ivec q) { return bits_xor(q, repeat1(-0x78)); }  // signed nibbles in the repacked weights
    static ivec value(ivec nibbles) { return nibbles; }
    static fvec scales(const block & b) { return load_scales(b.d); }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

struct iq4_nl {
    typedef block_iq4_nlx8 block;

    static ivec stored(ivec q) { return q; }

    static ivec values() {
        return repeat16(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    }

    static fvec scales(const block & b) { return load_scales(b.d); }
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

    static ivec stored(ivec q) { return q; }

    static ivec value(ivec nibbles) {
        return lookup16(repeat16(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)), nibbles);
    }
    static fvec scales(const block & b) {
        float d[INTERLEAVED];
        for (int i = 0; i < INTERLEAVED; ++i) {
            d[i] = GGML_CPU_E8M0_TO_FP32_HALF(b.e[i]);
        }
        return load_scales(d);
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
    if (PIECE == 4) {
        sums = _mm_add_epi16(sums, _mm_srli_epi64(sums, 32));
    }
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
        constexpr int N = 16/PIECE;  // vectors of the 16 bytes that a row has in a block

        const typename F::block * blocks = (const typename F::block *) w;

        fvec acc[R];
        std::fill(acc, acc + R, fzero());
        for (int64_t ib = 0; ib < k/QK8_0; ++ib) {
            const typename F::block & b = blocks[ib];
            prefetch<sizeof(b)>(&b);

            ivec q[2*N];
            for (int i = 0; i < N; ++i) {
                const ivec both = F::stored(load_pieces(b.qs, i));
                q[i]     = F::value(low4(both));
                q[i + N] = F::value(high4(both));
            }
            const fvec d = F::scales(b);

            for (int r = 0; r < R; ++r) {
                const activations & a = ((const activations *) x[r])[ib];

                ivec sums = repeat_piece(a.excess);
                for (int i = 0; i < 2*N; ++i) {
                    sums = F::add_products(sums, q[i], repeat_piece(a.qs + i*PIECE));
                }
                acc[r] = fma(to_float(F::sums_of_32(sums)), fmul(d, frepeat(a.d)), acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            store_rows(y[r], acc[r]);
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
