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
constexpr int64_t NVFP4_AHEAD = 4096;  // bytes that a panel is fetched ahead

// A block as bytes w + 12: four columns of an output in a word of 32 bits, in the order of RowBlock.
struct Block512 {
    __m512i columns[4];
};
inline Block512 decode_block(const uint8_t* codes) {
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    Block512 block;
    for (int half = 0; half < 2; ++half) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * half);
        block.columns[2 * half] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, nibble));
        block.columns[2 * half + 1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble));
    }
    return block;
}

inline __m512 dots_of(const Block512& block, const RowBlock& row) {
    int32_t codes[4];
    std::memcpy(codes, row.code, sizeof(codes));
    __m512i dots = _mm512_set1_epi32(row.start);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) dots = _mm512_dpbusd_epi32(dots, block.columns[i], _mm512_set1_epi32(codes[i]));
    return _mm512_cvtepi32_ps(dots);
}

// What a step adds to the sums of each row.
#if defined(OCRQUANT_WITH_AMX)

// Two blocks, rounded together, as a tile adds them up; see amx_nvfp4.h.
constexpr int64_t BLOCKS_OF_STEP = 2;

template <int ROWS>
inline void add_step(const RowBlock* x, const Nvfp4Group& group, int64_t b, const Scales& scales, __m512* sum) {
    const bool is_one = b + 1 == group.blocks;
    const Block512 first = decode_block(group.codes + b * BLOCK_BYTES);
    const Block512 second = decode_block(group.codes + (is_one ? b : b + 1) * BLOCK_BYTES);
    const __m512 first_scale = scales.of(int(b)), second_scale = is_one ? _mm512_setzero_ps() : scales.of(int(b) + 1);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const RowBlock* const row = x + r * CHUNK_BLOCKS;
        const RowBlock& next = row[is_one ? 0 : 1];
        const __m512 product = _mm512_mul_ps(dots_of(first, *row), _mm512_mul_ps(first_scale, _mm512_set1_ps(row->scale)));
        sum[r] = _mm512_add_ps(sum[r], _mm512_fmadd_ps(dots_of(second, next), _mm512_mul_ps(second_scale, _mm512_set1_ps(next.scale)), product));
    }
}

#else

constexpr int64_t BLOCKS_OF_STEP = 1;

template <int ROWS>
inline void add_step(const RowBlock* x, const Nvfp4Group& group, int64_t b, const Scales& scales, __m512* sum) {
    const Block512 block = decode_block(group.codes + b * BLOCK_BYTES);
    const __m512 scale = scales.of(int(b));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const RowBlock& row = x[r * CHUNK_BLOCKS];
        sum[r] = _mm512_fmadd_ps(dots_of(block, row), _mm512_mul_ps(scale, _mm512_set1_ps(row.scale)), sum[r]);
    }
}

#endif

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    __m512 sum[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) sum[r] = _mm512_loadu_ps(c + r * PANEL);
    for (int64_t g = 0; g * GROUP < blocks; ++g) {
        const Nvfp4Group group = nvfp4_group(w, g, blocks);
        const Scales scales(group.scales);
#pragma GCC unroll 9
        for (int line = 0; line < 9; ++line) prefetch(group.codes + NVFP4_AHEAD + 64 * line);
        for (int64_t b = 0; b < group.blocks; b += BLOCKS_OF_STEP) add_step<ROWS>(x + g * GROUP + b, group, b, scales, sum);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) _mm512_storeu_ps(c + r * PANEL, sum[r]);
}

#elif defined(OCRQUANT_WITH_AVX2)

constexpr int NVFP4_TILE_ROWS = 4;
constexpr int NVFP4_STREAMED_ROWS = 2;  // rows that a panel is decoded for in registers
constexpr int64_t NVFP4_AHEAD = 1024;   // bytes that a panel is fetched ahead

struct Pair {
    __m256i low, high;
};

// Eight columns of eight outputs as bytes w + 12: an output's four columns of lower nibbles, and those of upper ones.
inline Pair decode_part(const uint8_t* codes) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15), v = load(codes);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble))};
}

inline __m256i times_word(__m256i weights, const RowBlock& row, int word) {
    int32_t codes;
    std::memcpy(&codes, row.code[word], sizeof(codes));
    return _mm256_maddubs_epi16(weights, _mm256_set1_epi32(codes));
}

// Adds in this order: the compiler would rather build trees of sums, for which the registers do not suffice.
inline void add_in_order(__m256i& sum, __m256i term) {
    sum = _mm256_add_epi16(sum, term);
    asm("" : "+x"(sum));
}

// Sums of a row over the two sides of a panel, eight outputs each.
struct Sixteen {
    __m256 side[2];
};

inline void add_block(__m256& sum, __m256i dots, __m256 scale, const RowBlock& row) {
    const __m256 value = _mm256_cvtepi32_ps(_mm256_madd_epi16(dots, _mm256_set1_epi16(1)));
    sum = _mm256_fmadd_ps(value, _mm256_mul_ps(scale, _mm256_set1_ps(row.scale)), sum);
}

inline Sixteen load_sums(const float* c) { return {{_mm256_loadu_ps(c), _mm256_loadu_ps(c + 8)}}; }
inline void store_sums(float* c, const Sixteen& sum) {
    _mm256_storeu_ps(c, sum.side[0]);
    _mm256_storeu_ps(c + 8, sum.side[1]);
}
inline Sixteen scales_of(const Scales& scales, int block) {
    return {{Scales::move(scales.low, block), Scales::move(scales.high, block)}};
}

template <int ROWS>
inline __attribute__((always_inline)) void stream_block(const RowBlock* x, const uint8_t* codes, const Sixteen& scale, Sixteen* sum) {
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
        __m256i dots[ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; ++r) dots[r] = _mm256_set1_epi32(x[r * CHUNK_BLOCKS].start);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const Pair weights = decode_part(codes + 64 * half + 32 * side);
#pragma GCC unroll 2
            for (int r = 0; r < ROWS; ++r) {
                add_in_order(dots[r], times_word(weights.low, x[r * CHUNK_BLOCKS], 2 * half));
                add_in_order(dots[r], times_word(weights.high, x[r * CHUNK_BLOCKS], 2 * half + 1));
            }
        }
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; ++r) add_block(sum[r].side[side], dots[r], scale.side[side], x[r * CHUNK_BLOCKS]);
    }
}

template <int ROWS>
void nvfp4_tile(const RowBlock* x, const uint8_t* w, int64_t blocks, float* c) {
    Sixteen sum[ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) sum[r] = load_sums(c + r * PANEL);
    int64_t g = 0;
    for (; (g + 1) * GROUP <= blocks; ++g, w += GROUP_BYTES, x += GROUP) {
#pragma GCC unroll 9
        for (int line = 0; line < 9; ++line) prefetch(w + NVFP4_AHEAD + 64 * line);
        const Scales scales(w + GROUP * BLOCK_BYTES);
#pragma GCC unroll 4
        for (int b = 0; b < GROUP; ++b) {
            stream_block<ROWS>(x + b, w + b * BLOCK_BYTES, scales_of(scales, b), sum);
        }
    }
    const int64_t rest = blocks - g * GROUP;
    for (int64_t b = 0; b < rest; ++b) {
        const Scales scales(w + rest * BLOCK_BYTES);
        stream_block<ROWS>(x + b, w + b * BLOCK_BYTES, scales_of(scales, int(b)), sum);
    }
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) store_sums(c + r * PANEL, sum[r]);
}

// A decoded block, for as many rows as make decoding once worth it.
struct alignas(32) DecodedBlock {
    uint8_t words[2][4][32];  // by side
    float scale[PANEL];
};

inline void decode_blocks(const uint8_t* w, int64_t blocks, DecodedBlock* to) {
    for (int64_t g = 0; g * GROUP < blocks; ++g) {
        const Nvfp4Group group = nvfp4_group(w, g, blocks);
        const Scales scales(group.scales);
        for (int b = 0; b < group.blocks; ++b, ++to) {
#pragma GCC unroll 4
            for (int part = 0; part < 4; ++part) {
                const int half = part / 2, side = part % 2;
                const Pair weights = decode_part(group.codes + b * BLOCK_BYTES + 32 * part);
                _mm256_store_si256(reinterpret_cast<__m256i*>(to->words[side][2 * half]), weights.low);
                _mm256_store_si256(reinterpret_cast<__m256i*>(to->words[side][2 * half + 1]), weights.high);
            }
            store_sums(to->scale, scales_of(scales, b));
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
        const Sixteen scale = load_sums(w->scale);
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            __m256i dots[ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) dots[r] = _mm256_set1_epi32(x[r * CHUNK_BLOCKS].start);
#pragma GCC unroll 4
            for (int word = 0; word < 4; ++word) {
                const __m256i weights = load(w->words[side][word]);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; ++r) add_in_order(dots[r], times_word(weights, x[r * CHUNK_BLOCKS], word));
            }
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) add_block(sum[r].side[side], dots[r], scale.side[side], x[r * CHUNK_BLOCKS]);
        }
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
                columns[k][o] = table[nvfp4_code(codes, o, ORDER[k])];
            scale[o] = scale_from_e4m3(group.scales[o * GROUP + b % GROUP]);
        }
        for (int r = 0; r < ROWS; ++r) {
            const RowBlock& row = x[r * CHUNK_BLOCKS + b];
            int32_t dots[PANEL];
            for (int o = 0; o < PANEL; ++o) dots[o] = row.start;
            for (int k = 0; k < BLOCK; ++k)
                for (int o = 0; o < PANEL; ++o) dots[o] += columns[k][o] * row.code[k / 4][k % 4];
            for (int o = 0; o < PANEL; ++o) c[r * PANEL + o] += float(dots[o]) * (scale[o] * row.scale);
        }
    }
}

#endif

}  // namespace ocrquant::OCRQUANT_ISA
