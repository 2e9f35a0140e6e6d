// The kernels of repacked.h for types with blocks of 32 elements: Q4_0, IQ4_NL and MXFP4. Activations are quantized to
// Q8_0.

#include "matmul/activations_32.h"
#include "matmul/repacked.h"

#if defined(PYMTP_AVX2)
#include "repack.h"

namespace pymtp {

using namespace blocks;
using namespace simd;

namespace {

// A vector holds a piece of 4 bytes of each of several rows of the weights. It is multiplied by a vector that repeats 4
// bytes of a row of activations. So each lane of 32 bits belongs to one row of the weights, and no sums across lanes
// are needed.
constexpr int N_PIECES = 16/LANE_BYTES;  // number of pieces of a row of the weights in a block (16 bytes)

#if defined(PYMTP_AVX512)

// Return the lower or upper nibbles of x, read as signed numbers, plus 8.
ivec low4_signed (ivec x) { return _mm512_ternarylogic_epi32(x, repeat1(15), repeat1(8), 0x6a); }
ivec high4_signed(ivec x) { return low4_signed(shift_right2<4>(x)); }

#else

ivec low4_signed (ivec x) { return low4(bits_xor(x, repeat1(-0x78))); }
ivec high4_signed(ivec x) { return high4(bits_xor(x, repeat1(-0x78))); }

#endif

// The types below unpack nibbles to unsigned numbers: the weight plus zero_point. activations::correction removes the
// part that comes from zero_point from the sums. With a zero_point of 0, the numbers are signed.

struct q4_0 {
    typedef block_q4_0x8 block;
    static constexpr int zero_point = 8;

    // llama.cpp repacks Q4_0 to signed nibbles.
    static ivec low (ivec q) { return low4_signed(q); }
    static ivec high(ivec q) { return high4_signed(q); }
    static __m256 scales(const block & b) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) b.d)); }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

struct iq4_nl {
    typedef block_iq4_nlx8 block;

    static ivec values() {
        return repeat16(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    }

    static ivec low (ivec q) { return value(low4(q)); }
    static ivec high(ivec q) { return value(high4(q)); }
    static __m256 scales(const block & b) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) b.d)); }
#if defined(PYMTP_VNNI)
    static constexpr int zero_point = 128;

    static ivec value(ivec nibbles) {
        return lookup16(bits_xor(values(), repeat1(-128)), nibbles);
    }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return sums; }
#else
    static constexpr int zero_point = 0;  // with 128, products would not fit 16 bits

    static ivec value(ivec nibbles) { return lookup16(values(), nibbles); }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot_wide(sums, abs1(w), sign1(a, w)); }
    static ivec sums_of_32(ivec sums) { return sums; }
#endif
};

struct mxfp4 {
    typedef block_mxfp4x8 block;
    static constexpr int zero_point = 12;

    static ivec low (ivec q) { return value(low4(q)); }
    static ivec high(ivec q) { return value(high4(q)); }

    static ivec value(ivec nibbles) {
        return lookup16(repeat16(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)), nibbles);
    }
    static __m256 scales(const block & b) {
        float d[BLOCK_ROWS];
        for (int i = 0; i < BLOCK_ROWS; ++i) {
            d[i] = GGML_CPU_E8M0_TO_FP32_HALF(b.e[i]);
        }
        return _mm256_loadu_ps(d);
    }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

#if defined(PYMTP_AVX512)

// Multiplies four blocks of the weights at a time, in two vectors. Each load of activations is used for both vectors.
//
// With 4, 5, 6, 7 and 8 rows at a time, this kernel computes 80, 84, 88, 86 and 76 products per cycle (Q4_0, 24 rows in
// all, Zen 5). With one vector in place of two it would compute 75, and with vectors that hold 8 bytes of each of 8
// rows of the weights, 70. The upper bound is 102: 16 of 20 instructions are products, with 64 products each, and two
// instructions start per cycle.
template <typename F> struct multi_block {
    static constexpr int64_t BLOCKS    = 4;
    static constexpr int     VECTORS   = 2;
    static constexpr int     MAX_ROWS  = 8;  // up to this number, one pass is enough
    static constexpr int     BEST_ROWS = 6;

    // How many blocks ahead the kernel prefetches if one pass takes all rows. This is the best of 4 to 32.
    static constexpr int64_t PREFETCH_BLOCKS = 16;

    typedef typename F::block block;

    // Returns piece i (4 bytes) of each row of two blocks. The order of the lanes is: rows 0 and 1 of the first block,
    // rows 0 and 1 of the second block, rows 2 and 3 of the first block, and so on.
    static ivec load_piece(const block * const * b, int i) {
        const __m512 x = _mm512_loadu_ps((const float *) b[0]->qs + i/2*16);
        const __m512 y = _mm512_loadu_ps((const float *) b[1]->qs + i/2*16);
        return _mm512_castps_si512(i % 2 == 0 ? _mm512_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0)) :
                                                _mm512_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1)));
    }

    static fvec scales(const block * const * b) {
        const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
        const __m512 both = _mm512_insertf32x8(_mm512_castps256_ps512(F::scales(*b[0])), F::scales(*b[1]), 1);
        return _mm512_permutexvar_ps(order, both);
    }

    // Stores the results of the first n of two blocks, in the order of the rows of the weights.
    static void store(float * y, fvec x, int64_t n) {
        const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        _mm512_mask_storeu_ps(y, n <= 0 ? 0 : n == 1 ? 0xff : 0xffff, _mm512_permutexvar_ps(order, x));
    }

    template <int R>
    static void run(int64_t k, const char * const * w, size_t step, const char * const * x, float * const * y,
            int64_t n_blocks, pass_of pass) {
        const int64_t n = k/QK8_0;

        fvec acc[VECTORS][R];
        for (int v = 0; v < VECTORS; ++v) {
            std::fill(acc[v], acc[v] + R, fzero());
        }
        for (int64_t ib = 0; ib < n; ++ib) {
            const block * b[BLOCKS];
            for (int64_t j = 0; j < BLOCKS; ++j) {
                b[j] = (const block *) w[j] + ib;
            }
            // Prefetch the weight blocks that follow. All passes read the same weights, so a pass prefetches in one of
            // every pass.n iterations of this loop.
            const int64_t turn = pass.i*n + ib;
            if (turn%pass.n == 0) {
                const int64_t later = turn/pass.n + (pass.n == 1 ? PREFETCH_BLOCKS : n);
                for (int64_t j = 0; j < BLOCKS; ++j) {
                    prefetch<sizeof(block)>(w[0] + later%n*sizeof(block) + (later/n*BLOCKS + j)*step);
                }
            }
            // The sums are updated in turn, because each update of a sum must wait for the previous update of the same
            // sum.
            ivec sums[VECTORS][R];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < VECTORS; ++v) {
                    sums[v][r] = repeat4_at(block_at(x[r], ib).correction);
                }
            }
            const auto add = [&](const ivec * q, int i) {
                for (int r = 0; r < R; ++r) {
                    const ivec a = repeat4_at(block_at(x[r], ib).qs + i*LANE_BYTES);
                    for (int v = 0; v < VECTORS; ++v) {
                        sums[v][r] = F::add_products(sums[v][r], q[v], a);
                    }
                }
            };
            for (int i = 0; i < N_PIECES; ++i) {
                ivec low[VECTORS], high[VECTORS];
                for (int v = 0; v < VECTORS; ++v) {
                    const ivec both = load_piece(b + 2*v, i);
                    low[v]  = F::low(both);
                    high[v] = F::high(both);
                }
                add(low, i);
                add(high, i + N_PIECES);
            }
            for (int v = 0; v < VECTORS; ++v) {
                const fvec d = scales(b + 2*v);
                for (int r = 0; r < R; ++r) {
                    const fvec dx = frepeat(block_at(x[r], ib).d);
                    acc[v][r] = fma(to_float(F::sums_of_32(sums[v][r])), fmul(d, dx), acc[v][r]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < VECTORS; ++v) {
                store(y[r] + v*LANES, acc[v][r], n_blocks - 2*v);
            }
        }
    }
};

#endif

// Multiplies one block of the weights at a time. With AVX-512, this is best for one or two rows, which only wait for
// memory, because the memory is read as one stream. Each row of the weights has two lanes. The integer sums of both
// lanes are added up before the conversion to floats, so the result has the same bits as the result of multi_block.
//
// With AVX2, there are not enough registers for more than one block, and each row of the weights has one lane. Compared
// with vectors that hold 8 bytes of each of 4 rows of the weights, 8 rows take 0.86 of the time, and single rows 0.93
// (Q4_0, Zen 5). Without VNNI, the arithmetic limits the speed: a block of Q4_0 needs 28 vector operations to unpack,
// and 20 for each row of activations (8 products, 8 sums, and 4 to widen to 32 bits, convert to floats, scale and add).
// Zen 5 executes 3.5 of these operations per cycle where products and sums alternate. So 8 rows need 54 cycles for a
// block of 144 bytes. The compiled code takes 60 cycles, because GCC leaves 13 loads per row in it.
template <typename F> struct single_block {
    static constexpr int64_t BLOCKS    = 1;
    static constexpr int     MAX_ROWS  = 8;
    static constexpr int     BEST_ROWS = 8;

    typedef typename F::block block;

    static constexpr int PIECE = BYTES/BLOCK_ROWS;  // bytes of each row of the weights in a vector
    static constexpr int N     = 16/PIECE;          // number of pieces of a row of the weights in a block

    // load_piece() returns piece i of each row of a block, in the order of the lanes. repeat_piece() repeats the bytes
    // of activations for a piece. row_sums() returns the sum of the products of each row in each of its lanes.
#if defined(PYMTP_AVX512)
    static ivec load_piece(const block & b, int i)     { return load((const char *) b.qs + i*BYTES); }
    static ivec repeat_piece(const int8_t * qs)        { return repeat8_at(qs); }
    static ivec row_sums(ivec sums) { return add4(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB)); }

    static ivec correction_of(const activations & a) {  // in the first lane of each row
        uint32_t v;
        memcpy(&v, a.correction, sizeof(v));
        return repeat8(v);
    }
    static fvec scales(const block & b) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(F::scales(b)));
    }
    static void store(float * y, fvec x) {
        _mm256_storeu_ps(y, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, x)));
    }
#else
    // The order of the lanes is: rows 0, 1, 4, 5, 2, 3, 6, 7.
    static ivec load_piece(const block & b, int i) {
        const __m256 rows03 = _mm256_loadu_ps((const float *) b.qs + i/2*16);
        const __m256 rows47 = _mm256_loadu_ps((const float *) b.qs + i/2*16 + 8);
        return _mm256_castps_si256(i % 2 == 0 ? _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(2, 0, 2, 0)) :
                                                _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(3, 1, 3, 1)));
    }
    static ivec repeat_piece(const int8_t * qs)        { return repeat4_at(qs); }
    static ivec row_sums(ivec sums)                    { return sums; }
    static ivec correction_of(const activations & a)   { return repeat4_at(a.correction); }

    static fvec swap_middle(fvec x) {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
    }
    static fvec scales(const block & b)                { return swap_middle(F::scales(b)); }
    static void store(float * y, fvec x)               { fstore(y, swap_middle(x)); }
#endif

    template <int R>
    static void run(int64_t k, const char * const * w, size_t, const char * const * x, float * const * y, int64_t,
            pass_of) {
        const block * blocks = (const block *) w[0];

        fvec acc[R];
        std::fill(acc, acc + R, fzero());
        for (int64_t ib = 0; ib < k/QK8_0; ++ib) {
            const block & b = blocks[ib];
            prefetch_ahead<sizeof(b)>(&b);

            ivec q[2*N];
            for (int i = 0; i < N; ++i) {
                const ivec both = load_piece(b, i);
                q[i]     = F::low(both);
                q[i + N] = F::high(both);
            }
            const fvec d = scales(b);

            for (int r = 0; r < R; ++r) {
                const activations & a = block_at(x[r], ib);

                ivec sums = correction_of(a);
                for (int i = 0; i < 2*N; ++i) {
                    sums = F::add_products(sums, q[i], repeat_piece(a.qs + i*PIECE));
                }
                acc[r] = fma(to_float(row_sums(F::sums_of_32(sums))), fmul(d, frepeat(a.d)), acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            store(y[r], acc[r]);
        }
    }
};

#if !defined(PYMTP_AVX512)
template <typename F> using multi_block = single_block<F>;

#endif

template <typename F> constexpr rows_kernel kernel_of = {
    BLOCK_ROWS, prepared_size, prepare<F::zero_point>, multiply_repacked<single_block<F>, multi_block<F>>, ANY_ROWS};

}  // namespace

const rows_kernel repacked_q4_0   = kernel_of<q4_0>;
const rows_kernel repacked_iq4_nl = kernel_of<iq4_nl>;
const rows_kernel repacked_mxfp4  = kernel_of<mxfp4>;

}  // namespace pymtp

#endif
