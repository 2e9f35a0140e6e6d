// Kernels for the repacked types with blocks of 32: Q4_0, IQ4_NL, MXFP4. Activations are Q8_0.

#include "rows_blocks.h"
#include "rows_interleaved.h"

#if defined(PYMTP_ROWS_SIMD)
#include "repack.h"

namespace pymtp {

using namespace blocks;
using namespace simd;

namespace {

// A vector holds 4 bytes of each of its rows of the weights, and sees 4 bytes of a row of activations over and over. So a
// lane of 32 bits is a row, and nothing is to be added up across lanes.
constexpr int N = 16/PIECE;  // pieces of the 16 bytes that a row of the weights has in a block

#if defined(PYMTP_ROWS_512)

// nibbles of x as signed numbers plus 8
ivec low4_signed (ivec x) { return _mm512_ternarylogic_epi32(x, repeat1(15), repeat1(8), 0x6a); }
ivec high4_signed(ivec x) { return low4_signed(shift_right2<4>(x)); }

#else

ivec low4_signed (ivec x) { return low4(bits_xor(x, repeat1(-0x78))); }
ivec high4_signed(ivec x) { return high4(bits_xor(x, repeat1(-0x78))); }

#endif

// Nibbles become values from 0 on, `offset` too large. The excess of the sums is that of the activations times offset.

struct q4_0 {
    typedef block_q4_0x8 block;
    static constexpr int offset = 8;

    // the repacked weights have signed nibbles
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

    static ivec low (ivec q) { return value(low4(q)); }
    static ivec high(ivec q) { return value(high4(q)); }

    static ivec value(ivec nibbles) {
        return lookup16(repeat16(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)), nibbles);
    }
    static __m256 scales(const block & b) {
        float d[INTERLEAVED];
        for (int i = 0; i < INTERLEAVED; ++i) {
            d[i] = GGML_CPU_E8M0_TO_FP32_HALF(b.e[i]);
        }
        return _mm256_loadu_ps(d);
    }
    static ivec add_products(ivec sums, ivec w, ivec a) { return dot(sums, w, a); }
    static ivec sums_of_32(ivec sums) { return widen(sums); }
};

#if defined(PYMTP_ROWS_512)

// Four blocks of the weights in two vectors, which share each load of activations.
//
// With 4, 5, 6, 7, 8 rows of activations at a time they reach 80, 84, 88, 86, 76 products a cycle (Q4_0, 24 rows, Zen 5), one
// vector 75, vectors of 8 bytes of 8 rows of the weights 70. The bound is 102: 16 of 20 instructions are products, and two of
// these start in a cycle.
template <typename F> struct several {
    static constexpr int64_t BLOCKS  = 4;
    static constexpr int     VECTORS = 2;
    static constexpr int     MOST    = 8;  // the weights come from memory in one pass
    static constexpr int     BEST    = 6;

    // How many turns of the loop ahead weights are fetched where one pass takes all rows: of 4 to 32 the best.
    static constexpr int64_t AHEAD = 16;

    typedef typename F::block block;

    // Pieces i of two blocks. Lanes are rows 0, 1 of both, then rows 2, 3, and so on.
    static ivec pieces(const block * const * b, int i) {
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

    // The rows of the first n of two blocks.
    static void store(float * y, fvec x, int64_t n) {
        const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        _mm512_mask_storeu_ps(y, n <= 0 ? 0 : n == 1 ? 0xff : 0xffff, _mm512_permutexvar_ps(order, x));
    }

    template <int R>
    static void run(int64_t k, const char * const * w, size_t step, const char * const * x, float * const * y,
            int64_t n_blocks, passes at) {
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
            // the turns of this loop go on in the next blocks, whose memory all passes share
            const int64_t turn = at.i*n + ib;
            if (turn%at.n == 0) {
                const int64_t later = turn/at.n + (at.n == 1 ? AHEAD : n);
                for (int64_t j = 0; j < BLOCKS; ++j) {
                    fetch<sizeof(block)>(w[0] + later%n*sizeof(block) + (later/n*BLOCKS + j)*step);
                }
            }
            // sums grow side by side: one after the other, each would wait for its own products
            ivec sums[VECTORS][R];
            for (int r = 0; r < R; ++r) {
                for (int v = 0; v < VECTORS; ++v) {
                    sums[v][r] = repeat4_at(block_of(x[r], ib).excess);
                }
            }
            const auto add = [&](const ivec * q, int i) {
                for (int r = 0; r < R; ++r) {
                    const ivec a = repeat4_at(block_of(x[r], ib).qs + i*PIECE);
                    for (int v = 0; v < VECTORS; ++v) {
                        sums[v][r] = F::add_products(sums[v][r], q[v], a);
                    }
                }
            };
            for (int i = 0; i < N; ++i) {
                ivec low[VECTORS], high[VECTORS];
                for (int v = 0; v < VECTORS; ++v) {
                    const ivec both = pieces(b + 2*v, i);
                    low[v]  = F::low(both);
                    high[v] = F::high(both);
                }
                add(low, i);
                add(high, i + N);
            }
            for (int v = 0; v < VECTORS; ++v) {
                const fvec d = scales(b + 2*v);
                for (int r = 0; r < R; ++r) {
                    const fvec dx = frepeat(block_of(x[r], ib).d);
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

// One block of the weights. For single rows, which wait for memory: they read it in one stream. Two lanes have pieces of the
// same row; their integers are added up, so that bits are those of a lane for all.
template <typename F> struct one {
    static constexpr int64_t BLOCKS = 1;
    static constexpr int     MOST   = 8;
    static constexpr int     BEST   = 8;

    typedef typename F::block block;

    static fvec scales(const block & b) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(F::scales(b)));
    }

    static ivec in_first_lane(const char * excess) {
        uint32_t v;
        memcpy(&v, excess, sizeof(v));
        return repeat8(v);
    }

    template <int R>
    static void run(int64_t k, const char * const * w, size_t, const char * const * x, float * const * y, int64_t,
            passes) {
        const block * blocks = (const block *) w[0];

        fvec acc[R];
        std::fill(acc, acc + R, fzero());
        for (int64_t ib = 0; ib < k/QK8_0; ++ib) {
            const block & b = blocks[ib];
            prefetch<sizeof(b)>(&b);

            ivec q[N];
            for (int i = 0; i < N/2; ++i) {
                const ivec both = load((const char *) b.qs + i*BYTES);
                q[i]       = F::low(both);
                q[i + N/2] = F::high(both);
            }
            const fvec d = scales(b);

            for (int r = 0; r < R; ++r) {
                const activations & a = block_of(x[r], ib);

                ivec sums = in_first_lane(a.excess);
                for (int i = 0; i < N; ++i) {
                    sums = F::add_products(sums, q[i], repeat8_at(a.qs + i*2*PIECE));
                }
                sums = F::sums_of_32(sums);
                sums = add4(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
                acc[r] = fma(to_float(sums), fmul(d, frepeat(a.d)), acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            _mm256_storeu_ps(y[r], _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, acc[r])));
        }
    }
};

#else

// One block of the weights: there are no registers for more.
//
// 8 rows of activations take 0.86 of the time that vectors of 8 bytes of 4 rows of the weights take (Q4_0, Zen 5), single
// rows 0.93. Without VNNI the arithmetic is the bound: a block of Q4_0 costs 28 vector operations to unpack and 20 for each
// row of activations (8 products, 8 sums, then to 32 bits, to floats, scale, add). Zen 5 does 3.5 of them in a cycle where
// products and sums alternate. So 8 rows take 54 cycles for 144 bytes, or 60 as compiled: GCC leaves 13 loads to a row.
template <typename F> struct one {
    static constexpr int64_t BLOCKS = 1;
    static constexpr int     MOST   = 8;
    static constexpr int     BEST   = 8;

    typedef typename F::block block;

    // Lanes are rows 0, 1, 4, 5, 2, 3, 6, 7.
    static ivec pieces(const block & b, int i) {
        const __m256 rows03 = _mm256_loadu_ps((const float *) b.qs + i/2*16);
        const __m256 rows47 = _mm256_loadu_ps((const float *) b.qs + i/2*16 + 8);
        return _mm256_castps_si256(i % 2 == 0 ? _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(2, 0, 2, 0)) :
                                                _mm256_shuffle_ps(rows03, rows47, _MM_SHUFFLE(3, 1, 3, 1)));
    }

    static fvec swap_middle(fvec x) {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
    }

    template <int R>
    static void run(int64_t k, const char * const * w, size_t, const char * const * x, float * const * y, int64_t,
            passes) {
        const block * blocks = (const block *) w[0];

        fvec acc[R];
        std::fill(acc, acc + R, fzero());
        for (int64_t ib = 0; ib < k/QK8_0; ++ib) {
            const block & b = blocks[ib];
            prefetch<sizeof(b)>(&b);

            ivec q[2*N];
            for (int i = 0; i < N; ++i) {
                const ivec both = pieces(b, i);
                q[i]     = F::low(both);
                q[i + N] = F::high(both);
            }
            const fvec d = swap_middle(F::scales(b));

            for (int r = 0; r < R; ++r) {
                const activations & a = block_of(x[r], ib);

                ivec sums = repeat4_at(a.excess);
                for (int i = 0; i < 2*N; ++i) {
                    sums = F::add_products(sums, q[i], repeat4_at(a.qs + i*PIECE));
                }
                acc[r] = fma(to_float(F::sums_of_32(sums)), fmul(d, frepeat(a.d)), acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            fstore(y[r], swap_middle(acc[r]));
        }
    }
};

template <typename F> using several = one<F>;

#endif

template <typename F> constexpr rows_kernel kernel_of = {
    INTERLEAVED, prepared_size, prepare<F::offset>, multiply_interleaved<one<F>, several<F>>, ANY_ROWS};

}  // namespace

const rows_kernel rows_q4_0x8   = kernel_of<q4_0>;
const rows_kernel rows_iq4_nlx8 = kernel_of<iq4_nl>;
const rows_kernel rows_mxfp4x8  = kernel_of<mxfp4>;

}  // namespace pymtp

#endif
