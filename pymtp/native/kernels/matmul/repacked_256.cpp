// The kernels of repacked.h for types with superblocks of 256 elements: Q4_K and Q2_K. Activations are quantized to
// Q8_K.
//
// A vector holds 8 bytes of each of 8 (AVX-512) or 4 (AVX2) rows of the weights. So each row of the weights has two
// lanes of 32 bits, whose sums are added up at the end.

#include "matmul/repacked.h"
#include "matmul/quantize_q8_K.h"

#if defined(PYMTP_AVX2)
#include "quants.h"
#include "repack.h"

#include <cstring>
#include <type_traits>

namespace pymtp {

using namespace simd;

namespace {

constexpr int64_t VECTOR_ROWS = BYTES/8;                 // rows of the weights in a vector
constexpr int     PARTS       = BLOCK_ROWS/VECTOR_ROWS;  // vectors that hold all rows of a block

// A superblock of a prepared row of activations. sums: the sum of each group of quants whose weights share a minimum;
// there are n groups.
template <int n> struct alignas(8) activations {
    int8_t  qs[QK_K];
    int16_t sums[n];
    float   d;
};

template <int n> int16_t sum_of(const int8_t * q) {
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += q[i];
    }
    return sum;
}

template <int n> size_t prepared_size(int64_t k) { return k/QK_K*sizeof(activations<n>); }

template <int n> void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    for (int64_t i = k0; i < k1; i += QK_K) {
        activations<n> & a = ((activations<n> *) prepared)[i/QK_K];
        a.d = quantize_q8_K(x + i, a.qs);
        for (int j = 0; j < n; ++j) {
            a.sums[j] = sum_of<QK_K/n>(a.qs + QK_K/n*j);
        }
    }
}

// Returns the indexes for lookup16() that put the scale of each row of the weights into both lanes of that row. The
// scales are bytes i, i + step, i + 2*step, … of the table. part: number of the vector in its block.
template <int i, int step> ivec scale_lanes(int part) {
    static constexpr int32_t index[] = {
        scale_index(i),          scale_index(i),          scale_index(i +   step), scale_index(i +   step),
        scale_index(i + 2*step), scale_index(i + 2*step), scale_index(i + 3*step), scale_index(i + 3*step),
        scale_index(i + 4*step), scale_index(i + 4*step), scale_index(i + 5*step), scale_index(i + 5*step),
        scale_index(i + 6*step), scale_index(i + 6*step), scale_index(i + 7*step), scale_index(i + 7*step)};
    return load(index + part*LANES);
}

// The types below describe the layout of a superblock of eight rows of the weights.

struct q4_K {
    typedef block_q4_Kx8 block;
    static constexpr int n_sums = 8;

    // The scales and minima of a superblock, which are packed to 6 bits each. scales[i]: the scales of sub-block i for
    // the 8 rows of the weights. mins[c][i]: the minima of sub-block i for rows 4*c to 4*c + 3.
    struct unpacked {
        alignas(64) uint8_t scales[8][8];
        alignas(64) uint8_t mins[2][8][4];
    };

    static unpacked unpack(const block & b) {
        const uint8_t * packed = b.scales;
        // The scales and minima of a sub-block have 3 times 32 bits. The lower 128 bits of x0, x1 and x2 hold
        // sub-blocks 0 to 3, the upper 128 bits sub-blocks 4 to 7.
        const auto load = [&](int i) {
            return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) packed + i)),
                _mm_loadu_si128((const __m128i *) (packed + 48) + i), 1);
        };
        const __m256i x0 = load(0);
        const __m256i x1 = load(1);
        const __m256i x2 = load(2);
        const __m256i u0 = _mm256_shuffle_epi32(
            _mm256_blend_epi32(_mm256_blend_epi32(x0, x1, 0x44), x2, 0x22), _MM_SHUFFLE(1, 2, 3, 0));
        const __m256i u1 = _mm256_shuffle_epi32(
            _mm256_blend_epi32(_mm256_blend_epi32(x0, x1, 0x99), x2, 0x44), _MM_SHUFFLE(2, 3, 0, 1));
        const __m256i u2 = _mm256_shuffle_epi32(
            _mm256_blend_epi32(_mm256_blend_epi32(x0, x1, 0x22), x2, 0x99), _MM_SHUFFLE(3, 0, 1, 2));

        // The lower 6 bits of the bytes of u0 and u1 are the values for rows 0 to 3 of the weights. The values for rows
        // 4 to 7 have their upper 2 bits above these, and their lower 4 bits in u2.
        const __m256i six  = _mm256_set1_epi8(0x3f);
        const __m256i two  = _mm256_set1_epi8(0x30);
        const __m256i four = _mm256_set1_epi8(0x0f);
        const __m256i s03  = _mm256_and_si256(u0, six);
        const __m256i m03  = _mm256_and_si256(u1, six);
        const __m256i s47  = _mm256_or_si256(
            _mm256_and_si256(u2, four), _mm256_and_si256(_mm256_srli_epi16(u0, 2), two));
        const __m256i m47  = _mm256_or_si256(
            _mm256_and_si256(_mm256_srli_epi16(u2, 4), four), _mm256_and_si256(_mm256_srli_epi16(u1, 2), two));

        const __m256i s0145 = _mm256_unpacklo_epi32(s03, s47);
        const __m256i s2367 = _mm256_unpackhi_epi32(s03, s47);

        unpacked u;
        _mm256_store_si256((__m256i *) u.scales[0], _mm256_permute2x128_si256(s0145, s2367, 0x20));
        _mm256_store_si256((__m256i *) u.scales[4], _mm256_permute2x128_si256(s0145, s2367, 0x31));
        _mm256_store_si256((__m256i *) u.mins[0], m03);
        _mm256_store_si256((__m256i *) u.mins[1], m47);
        return u;
    }

    // Returns the minima of sub-blocks 4*i to 4*i + 3 for each row of the weights, as numbers of 16 bits.
    static ivec mins_of(const unpacked & u, int i, int part) {
        const __m128i rows01 = _mm_setr_epi8(0, -1, 4, -1, 8, -1, 12, -1, 1, -1, 5, -1, 9, -1, 13, -1);
        const __m256i index  = _mm256_inserti128_si256(
            _mm256_castsi128_si256(rows01), _mm_or_si128(rows01, _mm_set1_epi16(2)), 1);
        const auto four = [&](int c) {
            return _mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) u.mins[c][4*i])), index);
        };
#if defined(PYMTP_AVX512)
        (void) part;
        return _mm512_inserti64x4(_mm512_castsi256_si512(four(0)), four(1), 1);
#else
        return four(part);
#endif
    }

    // Adds the products of 256 bytes of quants, number j of the superblock, to `sums`. q: the bytes of a vector's rows.
    // quants_of(r) must return the quants of row r of the activations.
    template <int R, typename F>
    static void add_products(ivec * sums, const ivec * q, const unpacked & u, int j, int part, F quants_of) {
        const ivec lanes = scale_lanes<0, 1>(part);
        const auto sub_block = [&](int i, ivec w0, ivec w1, ivec w2, ivec w3) {
            const ivec scale = lookup16(repeat8_at(u.scales[i]), lanes);
            for (int r = 0; r < R; ++r) {
                const int8_t * a = quants_of(r) + 32*i;
                ivec s = dot(izero(), w0, repeat8_at(a));
                s = dot(s, w1, repeat8_at(a + 8));
                s = dot(s, w2, repeat8_at(a + 16));
                s = dot(s, w3, repeat8_at(a + 24));
                sums[r] = add_scaled(sums[r], s, scale);
            }
        };
        sub_block(2*j,     low4(q[0]),  low4(q[1]),  low4(q[2]),  low4(q[3]));
        sub_block(2*j + 1, high4(q[0]), high4(q[1]), high4(q[2]), high4(q[3]));
    }
};

struct q2_K {
    typedef block_q2_Kx8 block;
    static constexpr int n_sums = 16;

    static const block & unpack(const block & b) { return b; }

    // Returns the minima of sub-blocks 4*i to 4*i + 3 for each row of the weights, as numbers of 16 bits.
    static ivec mins_of(const block & b, int i, int part) {
        const __m128i x    = _mm_loadu_si128((const __m128i *) b.scales + 2*i);      // two sub-blocks of each row
        const __m128i y    = _mm_loadu_si128((const __m128i *) b.scales + 2*i + 1);  // two further sub-blocks
        const __m128i four = _mm_set1_epi8(15);
        const __m128i lo   = _mm_and_si128(_mm_srli_epi16(_mm_unpacklo_epi16(x, y), 4), four);
        const __m128i hi   = _mm_and_si128(_mm_srli_epi16(_mm_unpackhi_epi16(x, y), 4), four);
#if defined(PYMTP_AVX512)
        (void) part;
        return _mm512_cvtepu8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1));
#else
        return _mm256_cvtepu8_epi16(part == 0 ? lo : hi);
#endif
    }

    template <int R, typename F>
    static void add_products(ivec * sums, const ivec * q, const block & b, int j, int part, F quants_of) {
        const ivec even = scale_lanes<0, 2>(part);
        const ivec odd  = scale_lanes<1, 2>(part);
        const auto two_sub_blocks = [&](auto shift) {
            const int  i      = 4*j + shift/2;
            const ivec scales = low4(repeat16_at(b.scales + 16*i));
            const ivec scale0 = lookup16(scales, even);
            const ivec scale1 = lookup16(scales, odd);
            ivec w[4];
            for (int l = 0; l < 4; ++l) {
                w[l] = bits_and(shift_right2<shift>(q[l]), repeat1(3));
            }
            for (int r = 0; r < R; ++r) {
                const int8_t * a = quants_of(r) + 32*i;
                const ivec s0 = dot(dot(izero(), w[0], repeat8_at(a)),      w[1], repeat8_at(a + 8));
                const ivec s1 = dot(dot(izero(), w[2], repeat8_at(a + 16)), w[3], repeat8_at(a + 24));
                sums[r] = add_scaled(add_scaled(sums[r], s0, scale0), s1, scale1);
            }
        };
        two_sub_blocks(std::integral_constant<int, 0>());
        two_sub_blocks(std::integral_constant<int, 2>());
        two_sub_blocks(std::integral_constant<int, 4>());
        two_sub_blocks(std::integral_constant<int, 6>());
    }
};

// The kernel for layout L.
template <typename L> struct kernel {
    static constexpr int64_t BLOCKS    = 1;
    static constexpr int     MAX_ROWS  = 8;
    static constexpr int     BEST_ROWS = 8;

    typedef typename L::block      block;
    typedef activations<L::n_sums> row;

    template <int R>
    static void run(int64_t k, const char * const * w, size_t, const char * const * x, float * const * y, int64_t,
            pass_of) {
        fvec acc[PARTS][R];
        for (int part = 0; part < PARTS; ++part) {
            std::fill(acc[part], acc[part] + R, fzero());
        }
        for (int64_t ib = 0; ib < k/QK_K; ++ib) {
            const block & b = ((const block *) w[0])[ib];
            const auto &  u = L::unpack(b);
            const auto row_at = [&](int r) -> const row & { return ((const row *) x[r])[ib]; };
            prefetch_ahead<sizeof(b) - sizeof(b.qs)>(&b);

            for (int part = 0; part < PARTS; ++part) {
                ivec sums[R];
                for (int r = 0; r < R; ++r) {
                    sums[r] = izero();
                }
                for (int j = 0; j < (int) sizeof(b.qs)/256; ++j) {
                    const uint8_t * qs = (const uint8_t *) b.qs + 256*j + part*BYTES;
                    if (part == 0) {
                        prefetch_ahead<256>(b.qs + 256*j);
                    }
                    const ivec q[4] = { load(qs), load(qs + 64), load(qs + 128), load(qs + 192) };
                    L::template add_products<R>(sums, q, u, j, part, [&](int r) { return row_at(r).qs; });
                }
                ivec mins[L::n_sums/4];
                for (int i = 0; i < L::n_sums/4; ++i) {
                    mins[i] = L::mins_of(u, i, part);
                }
                const fvec d    = fload_half_twice(b.d    + part*VECTOR_ROWS);
                const fvec dmin = fload_half_twice(b.dmin + part*VECTOR_ROWS);

                for (int r = 0; r < R; ++r) {
                    const row & a = row_at(r);
                    ivec min_sums = madd2(mins[0], repeat8_at(a.sums));
                    for (int i = 1; i < L::n_sums/4; ++i) {
                        min_sums = add_madd2(min_sums, mins[i], repeat8_at(a.sums + 4*i));
                    }
                    const fvec dx = frepeat(a.d);
                    acc[part][r] = fma (to_float(sums[r]),  fmul(d, dx),    acc[part][r]);
                    acc[part][r] = fnma(to_float(min_sums), fmul(dmin, dx), acc[part][r]);
                }
            }
        }
        for (int part = 0; part < PARTS; ++part) {
            for (int r = 0; r < R; ++r) {
                fstore_pairs(y[r] + part*VECTOR_ROWS, acc[part][r]);
            }
        }
    }
};

template <typename L> constexpr rows_kernel kernel_of = {
    BLOCK_ROWS, prepared_size<L::n_sums>, prepare<L::n_sums>, multiply_repacked<kernel<L>, kernel<L>>, ANY_ROWS};

}  // namespace

const rows_kernel repacked_q4_K = kernel_of<q4_K>;
const rows_kernel repacked_q2_K = kernel_of<q2_K>;

}  // namespace pymtp

#endif
