// Rows as AMX reads them: bf16, in tiles of up to 16 rows by 32 columns.
//
// Beside bf16 and FP8 weights a tile is [rows][32]. Beside NVFP4 weights, which are the left factor there, it is [16][rows][2]:
// pairs of columns. Rows in codes enter as code times scale, which bf16 holds exactly.
#pragma once

#include "linear/amx.h"
#include "linear/nvfp4_rows.h"

namespace ocrquant::OCRQUANT_ISA {

// Rows in tiles of one height, the fewest tiles; rows of zeros fill the last one.
struct RowTiles {
    int64_t count, height;
    explicit RowTiles(int64_t rows) : count(ceil_div(rows, TILE_ROWS)), height(ceil_div(rows, count)) {}
    int64_t rows() const { return count * height; }
};

// Code times scale of one block, in bf16.
inline __m256i block_in_bf16(const uint8_t* codes, uint8_t scale) {
    const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i nibbles = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));  // the lowest four bits of each byte
    const __m512 code = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(nibbles), values);
    const __m512 value = _mm512_mul_ps(code, _mm512_set1_ps(scale_from_e4m3(scale)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(value), 16));
}

// Whether the tiles are read from the rows as they lie: bf16 rows of whole tiles, all in one.
inline bool lie_in_tiles(const LinearArgs& args) {
    return args.kind == LinearKind::bf16 && args.rows <= TILE_ROWS && args.in_features % TILE_COLUMNS == 0;
}

// 32 columns of a row in bf16, from block `b` on; zeros behind the last one.
inline __m512 pair_of_blocks(const LinearArgs& args, int64_t row, int64_t b) {
    const int64_t blocks = args.in_features / BLOCK;
    const auto one = [&](int64_t block) {
        if (block == blocks) return _mm256_setzero_si256();
        if (args.kind == LinearKind::nvfp4_plain)
            return load(reinterpret_cast<const uint16_t*>(args.x) + row * args.in_features + block * BLOCK);
        return block_in_bf16(args.x + (row * blocks + block) * (BLOCK / 2), args.x_scale[row * blocks + block]);
    };
    return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(one(b)), one(b + 1), 1));
}

// Rows `row` .. row + rows of the arguments as tiles [16][height][2], `step` bytes apart from 32 columns to the next ones. Pair by
// pair, stored 4 bytes at a time, 16 rows of 512 columns took 6 us, half of their product with [192, 512] (Xeon family 6 model
// 207, 2026-11-30).
inline void prepare_pairs(const LinearArgs& args, int64_t row, int64_t rows, uint8_t* x, int64_t step, int64_t height) {
    const __mmask16 some = __mmask16((1u << height) - 1);
    for (int64_t b = 0; b < args.in_features / BLOCK; b += 2, x += step) {
        if (height == 1) {
            _mm512_storeu_ps(x, pair_of_blocks(args, row, b));
            continue;
        }
        __m512 line[TILE_ROWS];
        for (int64_t r = 0; r < TILE_ROWS; ++r) line[r] = r < rows ? pair_of_blocks(args, row + r, b) : _mm512_setzero_ps();
        turn_over(line);
#pragma GCC unroll 16
        for (int64_t pair = 0; pair < TILE_ROWS; ++pair) _mm512_mask_storeu_ps(x + pair * height * 4, some, line[pair]);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
