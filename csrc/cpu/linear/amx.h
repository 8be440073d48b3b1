// The tiles of AMX: what they are set to, how they are loaded, multiplied and stored.
//
// A product adds to C [m][n] fp32 what A [m][columns] bf16 and B [columns / 2][n][2] bf16 give. An element of C depends on its
// row of A and its column of B alone, so tiles may be of any size up to 16 by 16. Products are exact; subnormal operands count
// as zero.
#pragma once

#include "linear/float_rows.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t TILE_ROWS = 16;      // at most
constexpr int64_t LINE = 64;           // bytes of a row of a full tile
constexpr int64_t TILE_COLUMNS = 32;   // of A, at most

enum Tile { sum_tile = 0, row_tile = 4, weight_tile = 5 };

struct alignas(64) TileSettings {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int64_t count, int64_t bytes) {
        rows[tile] = uint8_t(count);
        row_bytes[tile] = uint16_t(bytes);
    }
};

inline void begin_tiles(const TileSettings& settings) { asm volatile("ldtilecfg %0" : : "m"(settings)); }
inline void end_tiles() { asm volatile("tilerelease"); }

// Tiles of this thread while it lives.
class Tiles {
  public:
    explicit Tiles(const TileSettings& settings) { begin_tiles(settings); }
    ~Tiles() { end_tiles(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// The memory operands are invisible to the compiler, hence "memory".
template <int TILE>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
template <int SUM, int ROWS, int WEIGHTS>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(ROWS), "i"(WEIGHTS));
}

// The same of bytes, both with a sign, in int32: A [m][columns], B [columns / 4][n][4].
template <int SUM, int ROWS, int WEIGHTS>
inline void multiply_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(ROWS), "i"(WEIGHTS));
}

// Sixteen lines of sixteen values: what was element j of line i becomes element i of line j.
inline void turn_over(__m512 (&line)[16]) {
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(line[i], line[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(line[i], line[i + 1]);
    }
    // Now of four lines each: 4i + j holds element j of every quarter.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const __m512d first = _mm512_castps_pd(t[i + j]), second = _mm512_castps_pd(t[i + j + 2]);
            line[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
            line[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
        }
    }
    // Quarters are gathered: first those of lines 0 to 7 and of 8 to 15, then all.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512 a = _mm512_shuffle_f32x4(line[j], line[j + 4], 0x88), b = _mm512_shuffle_f32x4(line[j], line[j + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(line[j + 8], line[j + 12], 0x88), d = _mm512_shuffle_f32x4(line[j + 8], line[j + 12], 0xdd);
        t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[j + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[j + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[j + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) line[i] = t[i];
}

}  // namespace ocrquant::OCRQUANT_ISA
