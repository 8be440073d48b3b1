// Weights as AMX reads them: a step of 32 columns of one panel becomes a tile of bf16.
//
// bf16 panels are tiles already, [columns / 2][16][2], and FP8 ones become such. NVFP4 becomes [16][columns]: one lookup then
// gives the products of 16 codes of one output with their scale, which are exact in bf16 (two bits times four).
#pragma once

#include "linear/amx.h"
#include "linear/amx_products.h"
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

// `codes` as they lie; with one block, its words alone and 16 scales, the second half of the tile is zero.
template <int BLOCKS>
inline void decode_nvfp4_tile(const ProductTable& table, const uint8_t* codes, uint8_t* tile) {
    const uint8_t* const scales = codes + BLOCKS * BLOCK_BYTES;
#pragma GCC unroll 4
    for (int four = 0; four < 4; ++four) {
        const uint8_t* const words = codes + four * BLOCKS * 32;
        const __m512i v = BLOCKS == 2 ? _mm512_loadu_si512(words) : _mm512_zextsi256_si512(load(words));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {  // a lookup reads the lowest four bits of each word, and one more that chooses between equals
            const int output = 4 * four + i;
            const __m512i at = _mm512_srli_epi16(v, 4 * i);
            const __m512i values = BLOCKS == 2 ? pair_of_products(table, at, scales[output], scales[PANEL + output]) : products(table, at, scales[output]);
            _mm512_store_si512(tile + output * LINE, values);
        }
    }
}

// The last columns of a panel, fewer than a tile has: zeros behind them.
inline void decode_last(const LinearArgs& args, const uint8_t* w, int64_t columns, uint8_t* tile) {
    if (args.tiles) return decode_nvfp4_tile<1>(product_table(), w, tile);
    std::memset(tile, 0, size_t(TILE_BYTES));
    if (args.kind == LinearKind::bf16)
        std::memcpy(tile, w, size_t(columns * PANEL * 2));
    else if (args.kind == LinearKind::fp8)
        decode_fp8<FEWER_BINADES>(w, columns, reinterpret_cast<Unit*>(tile));
    else
        decode_fp8(w, columns, reinterpret_cast<Unit*>(tile));
}

// What a tile of weights comes from: codes that are decoded first, bf16 from memory, or what the tile of rows before has read.
enum class Source { fp8, fp8_plain, nvfp4, bf16, again };

// Not inlined: some hundred instructions, which would stand in the code of every number of panels.
template <Source SOURCE>
__attribute__((noinline)) void decode_step(const ProductTable& table, const uint8_t* w, int64_t ahead, uint8_t* tile) {
    constexpr int64_t bytes = SOURCE == Source::fp8 || SOURCE == Source::fp8_plain ? TILE_BYTES / 2 : SOURCE == Source::nvfp4 ? PAIR_BYTES : TILE_BYTES;
    if constexpr (SOURCE != Source::again) {
#pragma GCC unroll 16
        for (int64_t byte = 0; byte < bytes; byte += LINE) prefetch(w + ahead + byte);
    }
    if constexpr (SOURCE == Source::fp8) decode_fp8<FEWER_BINADES>(w, TILE_COLUMNS, reinterpret_cast<Unit*>(tile));
    if constexpr (SOURCE == Source::fp8_plain) decode_fp8(w, TILE_COLUMNS, reinterpret_cast<Unit*>(tile));
    if constexpr (SOURCE == Source::nvfp4) decode_nvfp4_tile<2>(table, w, tile);
}

}  // namespace ocrquant::OCRQUANT_ISA
