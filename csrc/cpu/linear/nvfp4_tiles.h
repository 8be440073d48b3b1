// Sums of NVFP4 codes: integers inside a block, then one fp32 step a block, c += sum * (weight scale * row scale).
//
// Sum, product of scales and their product are exact, so every instruction set gives the same bits.
#pragma once

#include "linear/nvfp4_rows.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t CHUNK_BLOCKS = CHUNK / BLOCK;

// A tile: blocks of row r at x + r * CHUNK_BLOCKS; sums of row r at c + r * PANEL; `w` is a packed panel at a border of groups.

#if defined(OCRQUANT_WITH_AVX512)

constexpr int NVFP4_TILE_ROWS = 8;

// A block as bytes w + 12: four consecutive columns of an output in a word of 32 bits.
struct Block512 {
    __m512i columns[4];
};
inline Block512 decode_block(const uint8_t* codes) {
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    // Word o of the low nibbles beside word o of the high ones; the second half of the registers is the next quarter.
    alignas(64) static const int16_t order[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59, 20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63}};
    Block512 block;
    for (int half = 0; half < 2; ++half) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * half);
        const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(v, nibble));
        const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble));
        block.columns[2 * half] = _mm512_permutex2var_epi16(low, _mm512_load_si512(order[0]), high);
        block.columns[2 * half + 1] = _mm512_permutex2var_epi16(low, _mm512_load_si512(order[1]), high);
    }
    return block;
}

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    __m512 sum[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) sum[r] = _mm512_loadu_ps(c + r * PANEL);
    for (int64_t g = 0; g * GROUP < blocks; ++g) {
        const Nvfp4Group group = nvfp4_group(w, g, blocks);
        const Scales scales(group.scales);
        for (int64_t b = 0; b < group.blocks; ++b) {
            const Block512 block = decode_block(group.codes + b * BLOCK_BYTES);
            const __m512 scale = scales.of(int(b));
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const RowBlock& row = x[r * CHUNK_BLOCKS + g * GROUP + b];
                int32_t codes[4];
                std::memcpy(codes, row.code, sizeof(codes));
                __m512i dots = _mm512_set1_epi32(row.start);
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) dots = _mm512_dpbusd_epi32(dots, block.columns[i], _mm512_set1_epi32(codes[i]));
                const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(row.scale));
                sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), both, sum[r]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) _mm512_storeu_ps(c + r * PANEL, sum[r]);
}

#elif defined(OCRQUANT_WITH_AVX2)

constexpr int NVFP4_TILE_ROWS = 4;
constexpr int NVFP4_STREAMED_ROWS = 2;   // rows that a panel is decoded for in registers
constexpr int64_t NVFP4_AHEAD = 1024;    // bytes that a panel is fetched ahead

struct Pair {
    __m256i low, high;
};

// A quarter of a block as bytes w + 12: 16 outputs by columns 0 and 1, and by columns 2 and 3.
inline Pair decode_quarter(const uint8_t* codes) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15), v = load(codes);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble))};
}

inline __m256i pair_of_row(const RowBlock& row, int pair) {
    int32_t word;
    std::memcpy(&word, row.code[pair], sizeof(word));
    return _mm256_set1_epi32(word);
}

inline __m256i times_pair(__m256i weights, const RowBlock& row, int pair) {
    return _mm256_maddubs_epi16(weights, pair_of_row(row, pair));
}

// Adds in this order: the compiler would rather build trees of sums, for which the registers do not suffice.
inline void add_in_order(__m256i& sum, __m256i term) {
    sum = _mm256_add_epi16(sum, term);
    asm("" : "+x"(sum));
}

// Sums of 16 bits as fp32: placed in the mantissa of 2**23, which is then taken away. Cheaper than conversions here.
struct Sixteen {
    __m256 low, high;
};
inline Sixteen to_float(__m256i dots) {
    const __m256i exponent = _mm256_set1_epi16(0x4b00);
    const __m256 offset = _mm256_set1_ps(8388608.0f + OFFSET);
    return {_mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(dots, exponent)), offset),
            _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(dots, exponent)), offset)};
}

inline void add_block(Sixteen& sum, __m256i dots, const Sixteen& scale, const RowBlock& row) {
    const Sixteen value = to_float(dots);
    const __m256 factor = _mm256_set1_ps(row.scale);
    sum.low = _mm256_fmadd_ps(value.low, _mm256_mul_ps(scale.low, factor), sum.low);
    sum.high = _mm256_fmadd_ps(value.high, _mm256_mul_ps(scale.high, factor), sum.high);
}

inline Sixteen load_sums(const float* c) { return {_mm256_loadu_ps(c), _mm256_loadu_ps(c + 8)}; }
inline void store_sums(float* c, const Sixteen& sum) {
    _mm256_storeu_ps(c, sum.low);
    _mm256_storeu_ps(c + 8, sum.high);
}

template <int ROWS>
inline __attribute__((always_inline)) void stream_block(const RowBlock* x, const uint8_t* codes, const Sixteen& scale, Sixteen* sum) {
    __m256i dots[ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) dots[r] = _mm256_set1_epi32(x[r * CHUNK_BLOCKS].start);
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
        const Pair weights = decode_quarter(codes + 32 * quarter);
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; ++r) {
            add_in_order(dots[r], times_pair(weights.low, x[r * CHUNK_BLOCKS], 2 * quarter));
            add_in_order(dots[r], times_pair(weights.high, x[r * CHUNK_BLOCKS], 2 * quarter + 1));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) add_block(sum[r], dots[r], scale, x[r * CHUNK_BLOCKS]);
}

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    Sixteen sum[ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) sum[r] = load_sums(c + r * PANEL);
    int64_t g = 0;
    for (; (g + 1) * GROUP <= blocks; ++g, w += GROUP_BYTES, x += GROUP) {
#pragma GCC unroll 9
        for (int line = 0; line < 9; ++line) _mm_prefetch(reinterpret_cast<const char*>(w + NVFP4_AHEAD + 64 * line), _MM_HINT_T0);
        const Scales scales(w + GROUP * BLOCK_BYTES);
#pragma GCC unroll 4
        for (int b = 0; b < GROUP; ++b) {
            const Sixteen scale{Scales::move(scales.low, b), Scales::move(scales.high, b)};
            stream_block<ROWS>(x + b, w + b * BLOCK_BYTES, scale, sum);
        }
    }
    const int64_t rest = blocks - g * GROUP;
    for (int64_t b = 0; b < rest; ++b) {
        const Scales scales(w + rest * BLOCK_BYTES);
        const Sixteen scale{Scales::move(scales.low, int(b)), Scales::move(scales.high, int(b))};
        stream_block<ROWS>(x + b, w + b * BLOCK_BYTES, scale, sum);
    }
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) store_sums(c + r * PANEL, sum[r]);
}

// A decoded block, for as many rows as make decoding once worth it.
struct alignas(32) DecodedBlock {
    uint8_t pairs[8][32];
    float scale[PANEL];
};

inline void decode_blocks(const uint8_t* w, int64_t blocks, DecodedBlock* to) {
    for (int64_t g = 0; g * GROUP < blocks; ++g) {
        const Nvfp4Group group = nvfp4_group(w, g, blocks);
        const Scales scales(group.scales);
        for (int b = 0; b < group.blocks; ++b, ++to) {
#pragma GCC unroll 4
            for (int quarter = 0; quarter < 4; ++quarter) {
                const Pair weights = decode_quarter(group.codes + b * BLOCK_BYTES + 32 * quarter);
                _mm256_store_si256(reinterpret_cast<__m256i*>(to->pairs[2 * quarter]), weights.low);
                _mm256_store_si256(reinterpret_cast<__m256i*>(to->pairs[2 * quarter + 1]), weights.high);
            }
            _mm256_store_ps(to->scale, Scales::move(scales.low, b));
            _mm256_store_ps(to->scale + 8, Scales::move(scales.high, b));
        }
    }
}

// Rows take turns, so that instructions that follow one another do not wait for one another.
template <int ROWS>
void decoded_tile(const RowBlock* x, const DecodedBlock* w, int64_t blocks, float* c) {
    Sixteen sum[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sum[r] = load_sums(c + r * PANEL);
    for (int64_t b = 0; b < blocks; ++b, ++x, ++w) {
        __m256i dots[ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) dots[r] = _mm256_set1_epi32(x[r * CHUNK_BLOCKS].start);
#pragma GCC unroll 8
        for (int pair = 0; pair < 8; ++pair) {
            const __m256i weights = load(w->pairs[pair]);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) add_in_order(dots[r], times_pair(weights, x[r * CHUNK_BLOCKS], pair));
        }
        const Sixteen scale = load_sums(w->scale);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) add_block(sum[r], dots[r], scale, x[r * CHUNK_BLOCKS]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) store_sums(c + r * PANEL, sum[r]);
}

#else

constexpr int NVFP4_TILE_ROWS = 4;

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    static constexpr int8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    for (int64_t b = 0; b < blocks; ++b) {
        const Nvfp4Group group = nvfp4_group(w, b / GROUP, blocks);
        const uint8_t* const codes = group.codes + b % GROUP * BLOCK_BYTES;
        int32_t columns[BLOCK][PANEL];
        float scale[PANEL];
        for (int o = 0; o < PANEL; ++o) {
            for (int k = 0; k < BLOCK; ++k)
                columns[k][o] = table[codes[k / 4 * 32 + 2 * word_of_output(o) + k % 2] >> (k % 4 / 2 * 4) & 15];
            scale[o] = scale_from_e4m3(group.scales[o * GROUP + b % GROUP]);
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
