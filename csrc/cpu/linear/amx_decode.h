// Weights as AMX reads them: a step of 32 columns of one panel becomes a tile of bf16.
//
// bf16 panels are tiles already, [columns / 2][16][2], and FP8 ones become such. NVFP4 becomes [16][columns]: one lookup then
// gives the products of 16 codes of one output with their scale, which are exact in bf16 (two bits times four).
#pragma once

#include "linear/amx.h"
#include "linear/float_decode.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t TILE_BYTES = PANEL * TILE_COLUMNS * 2;
constexpr int64_t AHEAD = 1024;  // bytes that a long panel is fetched ahead
constexpr int64_t SHORT = 4096;  // bytes of a panel up to which the next ones are fetched instead

// Two blocks of a panel in tiles, see layout.py: codes [4][2][16] words, whose nibbles are four outputs, then scales [2][16].
constexpr int64_t PAIR_BYTES = 2 * (BLOCK_BYTES + PANEL);

// Bytes of the first `columns` columns of a panel, as `tiles` says.
inline int64_t panel_bytes(const LinearArgs& args, int64_t columns) {
    return args.tiles ? columns / BLOCK * (PAIR_BYTES / 2) : panel_bytes(args.kind, columns);
}

// Every E2M1 code times every E4M3 scale, in bf16.
struct ProductTable {
    alignas(64) uint16_t products[256][16];
};
inline const ProductTable& product_table() {
    static const ProductTable table = [] {
        static constexpr float values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
        ProductTable t;
        for (int scale = 0; scale < 256; ++scale)
            for (int code = 0; code < 16; ++code)
                t.products[scale][code] = uint16_t(bits_from_float(values[code] * from_e4m3(uint8_t(scale))) >> 16);
        return t;
    }();
    return table;
}

// `codes` as they lie; with one block, its words alone and 16 scales, the second half of the tile is zero.
template <int BLOCKS>
inline void decode_nvfp4_tile(const uint8_t* codes, uint8_t* tile) {
    const uint16_t(*const products)[16] = product_table().products;
    const uint8_t* const scales = codes + BLOCKS * BLOCK_BYTES;
#pragma GCC unroll 4
    for (int four = 0; four < 4; ++four) {
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b) {
            const __m256i v = b < BLOCKS ? load(codes + (four * BLOCKS + b) * 32) : _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {  // reads the lowest four bits of each word
                const int output = 4 * four + i;
                __m256i values = v;
                if (b < BLOCKS) values = _mm256_permutexvar_epi16(_mm256_srli_epi16(v, 4 * i), load(products[scales[b * PANEL + output]]));
                _mm256_store_si256(reinterpret_cast<__m256i*>(tile + output * LINE + 32 * b), values);
            }
        }
    }
}

// The last columns of a panel, fewer than a tile has: zeros behind them.
inline void decode_last(const LinearArgs& args, const uint8_t* w, int64_t columns, uint8_t* tile) {
    if (args.tiles) return decode_nvfp4_tile<1>(w, tile);
    std::memset(tile, 0, size_t(TILE_BYTES));
    if (args.kind == LinearKind::bf16)
        std::memcpy(tile, w, size_t(columns * PANEL * 2));
    else
        decode_fp8(w, columns, reinterpret_cast<Unit*>(tile));
}

// What a tile of weights comes from: codes that are decoded first, bf16 from memory, or what the tile of rows before has read.
enum class Source { fp8, nvfp4, bf16, again };

// Not inlined: some hundred instructions, which would stand in the code of every number of panels.
template <Source SOURCE>
__attribute__((noinline)) void decode_step(const uint8_t* w, int64_t ahead, uint8_t* tile) {
    constexpr int64_t bytes = SOURCE == Source::fp8 ? TILE_BYTES / 2 : SOURCE == Source::nvfp4 ? PAIR_BYTES : TILE_BYTES;
    if constexpr (SOURCE != Source::again) {
#pragma GCC unroll 16
        for (int64_t byte = 0; byte < bytes; byte += LINE) prefetch(w + ahead + byte);
    }
    if constexpr (SOURCE == Source::fp8) decode_fp8(w, TILE_COLUMNS, reinterpret_cast<Unit*>(tile));
    if constexpr (SOURCE == Source::nvfp4) decode_nvfp4_tile<2>(w, tile);
}

}  // namespace ocrquant::OCRQUANT_ISA
