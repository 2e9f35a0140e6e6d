// Prepares activations for the kernel of plain.h: quantizes them as in llama.cpp, and puts each run of 16 elements into
// a lane of 32 bits.

#pragma once

#include "matmul/plain.h"
#include "matmul/quantize_q8_K.h"

#ifdef PYMTP_AVX2

namespace pymtp::plain {

static inline size_t prepared_size(int64_t k) {
    return (k + UNIT - 1)/UNIT*sizeof(activations);
}

// Returns the position of a run (of 16 elements) for layouts with NIBBLES_APART: of each four runs, the middle two are
// swapped.
static inline int swap_middle(int run) {
    return (run & ~3) | (run & 1) << 1 | (run & 2) >> 1;
}

// Writes the unit y, from UNIT quantized elements x and the scales of their runs.
template <typename L> static inline void store_unit(activations * y, const int8_t * x, const float * scales) {
    int8_t in_order[UNIT];
    if (L::NIBBLES_APART) {
        for (int run = 0; run < LANES; ++run) {
            memcpy(in_order + 16*swap_middle(run), x + 16*run, 16);
        }
        x = in_order;
    }
    ivec q[4];
    for (int j = 0; j < 4; ++j) {
        q[j] = load_halves((const uint8_t *) x + 32*j, 128, 0);
    }
    transpose(q);

    // in each half of the register, lane 4*i + j holds run 2*j + i (a run: elements with one scale)
    for (int lane = 0; lane < LANES; ++lane) {
        const int run = lane/8*8 + lane%4*2 + lane/4%2;
        y->scale[lane] = scales[L::NIBBLES_APART ? swap_middle(run) : run];
    }
    ivec sums = izero();
    for (int j = 0; j < 4; ++j) {
        sums = dot(sums, repeat1(1), q[j]);
    }
    const ivec correction =
        L::MINS ? as_int(fmul(to_float(widen(sums)), fload(y->scale))) : times(sums, -L::ZERO_POINT);

    memcpy(y->q,      q,       sizeof(y->q));
    memcpy(y->correction, &correction, sizeof(y->correction));
}

template <typename L> static void prepare_superblocks(const float * x, char * prepared, int64_t k0, int64_t k1) {
    for (int64_t l = k0; l < k1; l += QK_K) {
        int8_t q[QK_K];
        float scales[LANES];
        std::fill(scales, scales + LANES, quantize_q8_K(x + l, q));
        for (int64_t j = 0; j < QK_K; j += UNIT) {
            store_unit<L>((activations *) prepared + (l + j)/UNIT, q + j, scales);
        }
    }
}

// Prepares elements [k0, k1) of a row for layouts with blocks of 32. If the last unit is not full, it ends with zeros.
template <typename L> static void prepare_blocks(const float * x, char * prepared, int64_t k0, int64_t k1) {
    for (int64_t l = k0; l < k1; l += UNIT) {
        block_q8_0 b[UNIT/32];
        int8_t q[UNIT] = {};
        float scales[LANES] = {};
        const int64_t n = std::min<int64_t>(UNIT, k1 - l);
        quantize_row_q8_0(x + l, b, n);
        for (int64_t j = 0; j < n/32; ++j) {
            memcpy(q + 32*j, b[j].qs, 32);
            scales[2*j] = scales[2*j + 1] = half_to_float(b[j].d);
        }
        store_unit<L>((activations *) prepared + l/UNIT, q, scales);
    }
}

// Implements rows_kernel::prepare.
template <typename L> static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    if (L::BLOCK == QK_K) {
        prepare_superblocks<L>(x, prepared, k0, k1);
    } else {
        prepare_blocks<L>(x, prepared, k0, k1);
    }
}

}  // namespace pymtp::plain

#endif
