// Rows as AMX reads them: bf16, in tiles of up to 16 rows by 32 columns.
//
// Beside bf16 and FP8 weights a tile is [rows][32]. Beside NVFP4 weights, which are the left factor there, it is [16][rows][2]:
// pairs of columns. Rows in codes enter as code times scale, which bf16 holds exactly.
#pragma once

#include "linear/amx.h"
#include "linear/amx_products.h"

namespace ocrquant::OCRQUANT_ISA {

// Rows in tiles of one height, the fewest tiles; rows of zeros fill the last one.
struct RowTiles {
    int64_t count, height;
    explicit RowTiles(int64_t rows) : count(ceil_div(rows, TILE_ROWS)), height(ceil_div(rows, count)) {}
    int64_t rows() const { return count * height; }
    // Floats from a panel's sums to the next one's: not a multiple of 2048 bytes, lest four panels' share a set of the cache.
    int64_t panel_sums() const { return rows() * PANEL + (rows() % 32 == 0 ? TILE_ROWS * PANEL : 0); }
};

// Whether the tiles are read from the rows as they lie: bf16 rows of whole tiles, all in one.
inline bool lie_in_tiles(const LinearArgs& args) {
    return args.kind == LinearKind::bf16 && args.rows <= TILE_ROWS && args.in_features % TILE_COLUMNS == 0;
}

// 32 columns of a row in bf16, from block `b` on; zeros behind the last one.
inline __m512 pair_of_blocks(const ProductTable& table, const LinearArgs& args, int64_t row, int64_t b) {
    const int64_t blocks = args.in_features / BLOCK;
    const bool is_one = b + 1 == blocks;
    if (args.kind == LinearKind::nvfp4_plain) {
        const uint16_t* const from = reinterpret_cast<const uint16_t*>(args.x) + row * args.in_features + b * BLOCK;
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(is_one ? 0xffff : 0xffffffff, from));
    }
    const __m128i bytes = _mm_maskz_loadu_epi8(is_one ? 0xff : 0xffff, args.x + (row * blocks + b) * (BLOCK / 2));
    const __m128i upper = _mm_srli_epi16(bytes, 4);  // the lowest four bits of each byte, as a lookup reads them
    const __m256i nibbles = _mm256_set_m128i(_mm_unpackhi_epi8(bytes, upper), _mm_unpacklo_epi8(bytes, upper));
    const uint8_t* const scales = args.x_scale + row * blocks + b;
    return _mm512_castsi512_ps(pair_of_products(table, _mm512_cvtepu8_epi16(nibbles), scales[0], is_one ? 0 : scales[1]));
}

// Rows `row` .. row + rows of the arguments as tiles [16][height][2], `step` bytes apart from 32 columns to the next ones. Pair by
// pair, stored 4 bytes at a time, 16 rows of 512 columns took 6 us, half of their product with [192, 512] (Xeon family 6 model
// 207, 2026-11-30).
inline void prepare_pairs(const ProductTable& table, const LinearArgs& args, int64_t row, int64_t rows, uint8_t* x, int64_t step, int64_t height) {
    const __mmask16 some = __mmask16((1u << height) - 1);
    for (int64_t b = 0; b < args.in_features / BLOCK; b += 2, x += step) {
        if (height == 1) {
            _mm512_storeu_ps(x, pair_of_blocks(table, args, row, b));
            continue;
        }
        __m512 line[TILE_ROWS];
        for (int64_t r = 0; r < TILE_ROWS; ++r) line[r] = r < rows ? pair_of_blocks(table, args, row + r, b) : _mm512_setzero_ps();
        turn_over(line);
#pragma GCC unroll 16
        for (int64_t pair = 0; pair < TILE_ROWS; ++pair) _mm512_mask_storeu_ps(x + pair * height * 4, some, line[pair]);
    }
}

// Rows `row` .. row + rows of the arguments as tiles [height][32], `step` bytes apart; zeros fill rows and columns up. A step of all
// rows at a time: row after row, the stores of 64 rows would lie 4096 bytes apart, in one set of the cache.
inline void prepare_tiles(const LinearArgs& args, int64_t row, int64_t rows, uint8_t* x, int64_t step, int64_t height) {
    const E4m3Table& table = e4m3_table<CODES_UP>();
    const int64_t width = args.in_features;
    const uint16_t* const plain = reinterpret_cast<const uint16_t*>(args.x) + row * width;
    const uint8_t* const codes = args.x + row * width;
    for (int64_t k = 0; k < width; k += TILE_COLUMNS, x += step) {
        const __mmask32 some = columns_left(width - k);
        for (int64_t r = 0; r < height; ++r) {
            __m512i values = _mm512_setzero_si512();
            if (r < rows)
                values = args.kind == LinearKind::fp8 ? codes_in_bf16(table, codes + r * width + k, some)
                                                      : _mm512_maskz_loadu_epi16(some, plain + r * width + k);
            _mm512_store_si512(x + r * LINE, values);
        }
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
