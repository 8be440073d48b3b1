// Sums of NVFP4 codes: integers inside a block, then one fp32 step a block, c += sum * (weight scale * row scale).
//
// Sum, product of scales and their product are exact, so every instruction set gives the same bits.
#pragma once

#include "linear/nvfp4_rows.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t CHUNK_BLOCKS = CHUNK / BLOCK;

// A tile: blocks of row r at x + r * CHUNK_BLOCKS; sums of row r at c + r * PANEL; `w` is a packed panel at a border of groups.

#if defined(OCRQUANT_WITH_AVX512)

constexpr int TILE_ROWS = 8;

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 sum[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) sum[r] = _mm512_loadu_ps(c + r * PANEL);
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Block block = nvfp4_block(w, b, blocks);
        const __m512i first = _mm512_loadu_si512(block.codes), second = _mm512_loadu_si512(block.codes + 64);
        const __m512i w0 = _mm512_shuffle_epi8(table, _mm512_and_si512(first, nibble));
        const __m512i w1 = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(first, 4), nibble));
        const __m512i w2 = _mm512_shuffle_epi8(table, _mm512_and_si512(second, nibble));
        const __m512i w3 = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(second, 4), nibble));
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.scales));
        const __m512 half = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
        const __m512 scale = _mm512_mul_ps(half, _mm512_set1_ps(256.0f));
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const RowBlock& row = x[r * CHUNK_BLOCKS + b];
            int32_t codes[4];
            std::memcpy(codes, row.code, sizeof(codes));
            __m512i dots = _mm512_set1_epi32(row.start);
            dots = _mm512_dpbusd_epi32(dots, w0, _mm512_set1_epi32(codes[0]));
            dots = _mm512_dpbusd_epi32(dots, w1, _mm512_set1_epi32(codes[1]));
            dots = _mm512_dpbusd_epi32(dots, w2, _mm512_set1_epi32(codes[2]));
            dots = _mm512_dpbusd_epi32(dots, w3, _mm512_set1_epi32(codes[3]));
            const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(row.scale));
            sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), both, sum[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) _mm512_storeu_ps(c + r * PANEL, sum[r]);
}

#elif defined(OCRQUANT_WITH_AVX2)

constexpr int TILE_ROWS = 4;
constexpr int64_t AHEAD = 1024;  // bytes that a panel is fetched ahead

inline __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// Sixteen columns of eight outputs: bytes w + 12, four columns a word.
struct Columns16 {
    __m256i w0, w1, w2, w3;
};

inline Columns16 decode16(const uint8_t* codes) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i first = load(codes), second = load(codes + 64);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(first, nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(first, 4), nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(second, nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(second, 4), nibble))};
}

inline __m256 decode_scales(const uint8_t* scales) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
    const __m256 half = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
    return _mm256_mul_ps(half, _mm256_set1_ps(256.0f));
}

inline __m256i word(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, codes, sizeof(value));
    return _mm256_set1_epi32(value);
}

// sum + (dot products of 16 columns) * scale.
inline __m256 step(__m256 sum, const RowBlock& row, const Columns16& w, __m256 scale) {
    __m256i dots = _mm256_set1_epi32(row.start);
    dots = _mm256_add_epi16(dots, _mm256_maddubs_epi16(w.w0, word(row.code)));
    dots = _mm256_add_epi16(dots, _mm256_maddubs_epi16(w.w1, word(row.code + 4)));
    dots = _mm256_add_epi16(dots, _mm256_maddubs_epi16(w.w2, word(row.code + 8)));
    dots = _mm256_add_epi16(dots, _mm256_maddubs_epi16(w.w3, word(row.code + 12)));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_madd_epi16(dots, _mm256_set1_epi16(1)));
    return _mm256_fmadd_ps(value, _mm256_mul_ps(scale, _mm256_set1_ps(row.scale)), sum);
}

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    __m256 sum[ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sum[r][0] = _mm256_loadu_ps(c + r * PANEL), sum[r][1] = _mm256_loadu_ps(c + r * PANEL + 8);
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Block block = nvfp4_block(w, b, blocks);
        _mm_prefetch(reinterpret_cast<const char*>(block.codes + AHEAD), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(block.codes + AHEAD + 64), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const Columns16 columns = decode16(block.codes + 32 * half);
            const __m256 scale = decode_scales(block.scales + 8 * half);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) sum[r][half] = step(sum[r][half], x[r * CHUNK_BLOCKS + b], columns, scale);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) _mm256_storeu_ps(c + r * PANEL, sum[r][0]), _mm256_storeu_ps(c + r * PANEL + 8, sum[r][1]);
}

// A decoded block, for as many rows as make decoding once worth it.
struct alignas(32) DecodedHalf {
    uint8_t columns[4][32];
    float scale[8];
};

inline void decode_blocks(const uint8_t* w, int64_t blocks, DecodedHalf* to) {
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Block block = nvfp4_block(w, b, blocks);
        for (int half = 0; half < 2; ++half, ++to) {
            const Columns16 columns = decode16(block.codes + 32 * half);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to->columns[0]), columns.w0);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to->columns[1]), columns.w1);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to->columns[2]), columns.w2);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to->columns[3]), columns.w3);
            _mm256_store_ps(to->scale, decode_scales(block.scales + 8 * half));
        }
    }
}

template <int ROWS>
void decoded_tile(const RowBlock* x, const DecodedHalf* w, int64_t blocks, float* c) {
    for (int half = 0; half < 2; ++half) {
        __m256 sum[ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) sum[r] = _mm256_loadu_ps(c + r * PANEL + 8 * half);
        for (int64_t b = 0; b < blocks; ++b) {
            const DecodedHalf& block = w[2 * b + half];
            const Columns16 columns{load(block.columns[0]), load(block.columns[1]), load(block.columns[2]), load(block.columns[3])};
            const __m256 scale = _mm256_load_ps(block.scale);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) sum[r] = step(sum[r], x[r * CHUNK_BLOCKS + b], columns, scale);
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) _mm256_storeu_ps(c + r * PANEL + 8 * half, sum[r]);
    }
}

#else

constexpr int TILE_ROWS = 4;

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    static constexpr int8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Block block = nvfp4_block(w, b, blocks);
        int32_t columns[BLOCK][PANEL];
        float scale[PANEL];
        for (int o = 0; o < PANEL; ++o) {
            for (int k = 0; k < BLOCK; ++k)
                columns[k][o] = table[block.codes[k / 8 * 64 + 4 * o + k % 4] >> (k % 8 / 4 * 4) & 15];
            scale[o] = scale_from_e4m3(block.scales[o]);
        }
        for (int r = 0; r < ROWS; ++r) {
            const RowBlock& row = x[r * CHUNK_BLOCKS + b];
            int32_t dots[PANEL];
            for (int o = 0; o < PANEL; ++o) dots[o] = row.start;
            for (int k = 0; k < BLOCK; ++k)
                for (int o = 0; o < PANEL; ++o) dots[o] += columns[k][o] * row.code[k];
            for (int o = 0; o < PANEL; ++o) c[r * PANEL + o] += float(dots[o]) * (scale[o] * row.scale);
        }
    }
}

#endif

}  // namespace ocrquant::OCRQUANT_ISA
