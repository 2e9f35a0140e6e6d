// The activations for rows_plain.h: quantized as by llama.cpp, a lane of 32 bits for a run of 16 elements.

#pragma once

#include "rows_plain_layouts.h"
#include "rows_q8_K.h"

#ifdef PYMTP_ROWS_SIMD

namespace pymtp::plain {

static inline size_t prepared_size(int64_t k) {
    return (k + UNIT - 1)/UNIT*sizeof(activations);
}

// The place of a run of 16 elements where the nibbles of a byte are 16 elements apart: see rows_plain_layouts.h.
static inline int swap_middle(int run) {
    return (run & ~3) | (run & 1) << 1 | (run & 2) >> 1;
}

// Quantized elements in their order, and the scales of the runs, to a unit.
template <typename L> static inline void put(activations * y, const int8_t * x, const float * scales) {
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

    // lane 4*i + j of a half is run 2*j + i
    for (int lane = 0; lane < LANES; ++lane) {
        const int run = lane/8*8 + lane%4*2 + lane/4%2;
        y->scale[lane] = scales[L::NIBBLES_APART ? swap_middle(run) : run];
    }
    ivec sums = izero();
    for (int j = 0; j < 4; ++j) {
        sums = dot(sums, repeat1(1), q[j]);
    }
    const ivec offset = L::MINS ? as_int(fmul(to_float(widen(sums)), fload(y->scale))) : times(sums, -L::EXCESS);

    memcpy(y->q,      q,       sizeof(y->q));
    memcpy(y->offset, &offset, sizeof(y->offset));
}

template <typename L> static void prepare_superblocks(const float * x, char * prepared, int64_t k0, int64_t k1) {
    for (int64_t l = k0; l < k1; l += QK_K) {
        int8_t q[QK_K];
        float scales[LANES];
        std::fill(scales, scales + LANES, quantize_q8_K(x + l, q));
        for (int64_t j = 0; j < QK_K; j += UNIT) {
            put<L>((activations *) prepared + (l + j)/UNIT, q + j, scales);
        }
    }
}

// A last unit that is not full has zeros.
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
        put<L>((activations *) prepared + l/UNIT, q, scales);
    }
}

// As rows_kernel::prepare.
template <typename L> static void prepare(const float * x, char * prepared, int64_t, int64_t k0, int64_t k1) {
    if (L::BLOCK == QK_K) {
        prepare_superblocks<L>(x, prepared, k0, k1);
    } else {
        prepare_blocks<L>(x, prepared, k0, k1);
    }
}

}  // namespace pymtp::plain

#endif
