// The tile instructions of AMX as plain loops, so that a processor without AMX computes what one with AMX would: for
// tools/checks/builds.py, which has amx/*.cpp of ggml-cpu compiled with this file. Only what is used there is here.

#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

namespace amx_emulation {

struct configuration {
    uint8_t  palette;
    uint8_t  start_row;
    uint8_t  reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
};
static_assert(sizeof(configuration) == 64, "as LDTILECFG reads it");

struct tile {
    int8_t bytes[16][64];
};

inline thread_local configuration config = {};
inline thread_local tile          tiles[8];

inline void zero(int i) {
    memset(&tiles[i], 0, sizeof(tile));
}

inline void load(int i, const void * from, size_t stride) {
    zero(i);
    for (int row = 0; row < config.rows[i]; ++row) {
        memcpy(tiles[i].bytes[row], (const char *) from + row*stride, config.row_bytes[i]);
    }
}

inline void store(int i, void * to, size_t stride) {
    for (int row = 0; row < config.rows[i]; ++row) {
        memcpy((char *) to + row*stride, tiles[i].bytes[row], config.row_bytes[i]);
    }
}

// TDPBSSD: sums of four products of signed bytes are added to each 32-bit element of c.
inline void multiply(int c, int a, int b) {
    for (int row = 0; row < config.rows[c]; ++row) {
        for (int k = 0; k < config.row_bytes[a]/4; ++k) {
            for (int column = 0; column < config.row_bytes[c]/4; ++column) {
                int32_t sum;
                memcpy(&sum, &tiles[c].bytes[row][4*column], sizeof(sum));
                for (int i = 0; i < 4; ++i) {
                    sum += tiles[a].bytes[row][4*k + i]*tiles[b].bytes[k][4*column + i];
                }
                memcpy(&tiles[c].bytes[row][4*column], &sum, sizeof(sum));
            }
        }
    }
}

}  // namespace amx_emulation

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd

#define _tile_loadconfig(from)         memcpy(&amx_emulation::config, from, 64)
#define _tile_loadd(i, from, stride)   amx_emulation::load(i, from, stride)
#define _tile_stored(i, to, stride)    amx_emulation::store(i, to, stride)
#define _tile_zero(i)                  amx_emulation::zero(i)
#define _tile_dpbssd(c, a, b)          amx_emulation::multiply(c, a, b)

#define syscall(...) 0  // the system's leave to use tiles
