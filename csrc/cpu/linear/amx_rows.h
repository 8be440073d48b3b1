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

// Pairs of columns of row `row` of the arguments, to row `place` of tiles that begin at `x`; tiles are `step` bytes apart from
// 32 columns to the next ones.
inline void prepare_pairs(const LinearArgs& args, int64_t row, uint8_t* x, int64_t step, const RowTiles& tiles, int64_t place) {
    const int64_t blocks = args.in_features / BLOCK;
    const uint8_t* const codes = args.x + row * (args.in_features / 2);
    const uint8_t* const scales = args.x_scale + row * blocks;
    const uint16_t* const plain = reinterpret_cast<const uint16_t*>(args.x) + row * args.in_features;
    uint8_t* const first = x + place / tiles.height * tiles.height * LINE + place % tiles.height * 4;
    for (int64_t b = 0; b < blocks + blocks % 2; ++b) {
        alignas(32) uint32_t pairs[BLOCK / 2] = {};
        if (b < blocks) {
            const bool is_plain = args.kind == LinearKind::nvfp4_plain;
            const __m256i values = is_plain ? load(plain + b * BLOCK) : block_in_bf16(codes + b * BLOCK / 2, scales[b]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), values);
        }
        uint8_t* const to = first + b / 2 * step + b % 2 * (BLOCK / 2) * tiles.height * 4;
        for (int64_t pair = 0; pair < BLOCK / 2; ++pair) std::memcpy(to + pair * tiles.height * 4, &pairs[pair], 4);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
