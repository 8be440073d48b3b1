// Rows as AMX reads them: bf16, in tiles of up to 16 rows by 32 columns. Rows in codes enter as code times scale, which bf16 holds
// exactly.
#pragma once

#include "linear/amx.h"
#include "linear/amx_nvfp4.h"

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

// 32 columns of a row, from column `k` on; zeros behind the last one.
inline __m512i row_of_tile(const LinearArgs& args, const E4m3Table& codes, const ProductTable& products, int64_t row, int64_t k) {
    const int64_t width = args.in_features;
    const __mmask32 some = columns_left(width - k);
    const uint16_t* const plain = reinterpret_cast<const uint16_t*>(args.x) + row * width + k;
    switch (args.kind) {
        case LinearKind::fp8: return codes_in_bf16(codes, args.x + row * width + k, some);
        case LinearKind::nvfp4: return pair_of_blocks(products, args, row, k / BLOCK);
        case LinearKind::nvfp4_plain: return pair_of_blocks(plain, width - k);
        default: return _mm512_maskz_loadu_epi16(some, plain);
    }
}

// Rows `row` .. row + rows of the arguments as tiles [height][32], `step` bytes apart; zeros fill rows and columns up. A step of all
// rows at a time: row after row, the stores of 64 rows would lie 4096 bytes apart, in one set of the cache.
inline void prepare_tiles(const LinearArgs& args, int64_t row, int64_t rows, uint8_t* x, int64_t step, int64_t height) {
    const E4m3Table& codes = e4m3_table<CODES_UP>();
    const ProductTable& products = product_table();
    for (int64_t k = 0; k < args.in_features; k += TILE_COLUMNS, x += step) {
        for (int64_t r = 0; r < height; ++r)
            _mm512_store_si512(x + r * LINE, r < rows ? row_of_tile(args, codes, products, row + r, k) : _mm512_setzero_si512());
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
