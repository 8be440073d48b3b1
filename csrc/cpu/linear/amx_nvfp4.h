// NVFP4 as AMX reads it: pairs of columns are a column of one block and the same one of the next block.
//
// A tile adds up the first columns of its pairs, from zero, and the second ones, then both, then those to the sum. Sums of codes
// within a block are exact, so a sum grows by what two blocks give, rounded, whoever multiplies: `nvfp4_tile` does the same in
// integers, and is 2.7 times as fast for one row.
#pragma once

#include "linear/amx.h"
#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

// Weights enter in 2**-112 of their values: an exponent of fp16 moved to where bf16 has it. Rows in codes make up for nearly all.
constexpr int NVFP4_DOWN = 112, NVFP4_UP = 100;

// Every E2M1 code times every E4M3 scale times 2**NVFP4_UP, in bf16, which holds that exactly: two bits times four.
struct ProductTable {
    alignas(64) uint16_t products[256][16];
};
inline const ProductTable& product_table() {
    static const ProductTable table = [] {
        static constexpr float values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
        ProductTable t;
        for (int scale = 0; scale < 256; ++scale)
            for (int code = 0; code < 16; ++code)
                t.products[scale][code] = uint16_t(bits_from_float(values[code] * from_e4m3(uint8_t(scale)) * power_of_two(NVFP4_UP)) >> 16);
        return t;
    }();
    return table;
}

// Two blocks of sixteen columns one after the other become pairs.
inline __m512i paired(__m512i blocks) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Word 2k is k, word 2k + 1 is 16 + k.
    const __m512i order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(order, blocks);
}

// 32 columns of a row in codes, from block `b` on; zeros stand for a block that is not there.
inline __m512i pair_of_blocks(const ProductTable& table, const LinearArgs& args, int64_t row, int64_t b) {
    const int64_t blocks = args.in_features / BLOCK;
    const bool is_one = b + 1 == blocks;
    const __m128i bytes = _mm_maskz_loadu_epi8(is_one ? 0xff : 0xffff, args.x + (row * blocks + b) * (BLOCK / 2));
    const __m128i upper = _mm_srli_epi16(bytes, 4);  // a lookup reads the lowest four bits, and one that chooses between equals
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(bytes, upper), _mm_unpacklo_epi8(bytes, upper)));
    const uint8_t* const scales = args.x_scale + row * blocks + b;
    const auto products_in = [&](uint8_t scale) {
        return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table.products[scale])));
    };
    const __m512i first = _mm512_permutexvar_epi16(codes, products_in(scales[0]));
    return paired(_mm512_mask_permutexvar_epi16(first, 0xffff0000, codes, products_in(is_one ? 0 : scales[1])));
}

// The same columns of a row in bf16.
inline __m512i pair_of_blocks(const uint16_t* row, int64_t columns) {
    return paired(_mm512_maskz_loadu_epi16(columns < 2 * BLOCK ? 0xffff : 0xffffffff, row));
}

// Assembly, like the tiles, so that the compiler need not know of fp16.
inline __m512i multiply_fp16(__m512i a, __m512i b) {
    __m512i product;
    asm("vmulph %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return product;
}

// Two blocks of a panel, the first of them number `first` of its group, as a tile [16][16][2]. With PLAIN the values are as they
// are, for rows that nothing makes up for.
template <bool PLAIN>
inline void decode_nvfp4_pair(const Nvfp4Group& group, int64_t first, uint8_t* tile) {
    // Codes in fp16 times 2**8: the scale's bits moved into place are 2**-8 of it.
    const __m128i positive = _mm_setr_epi16(0, 0x5800, 0x5c00, 0x5e00, 0x6000, 0x6200, 0x6400, 0x6600);
    const __m128i negative = _mm_or_si128(positive, _mm_set1_epi16(short(0x8000)));
    const __m512i table = _mm512_broadcast_i64x4(_mm256_set_m128i(negative, positive));
    const __m512i bits = _mm512_set1_epi16(short(0x8fff)), upper = _mm512_set1_epi32(int(0xffff0000));
    const bool is_one = first + 1 == group.blocks;
    // A word's upper byte is the scale of its block.
    const __m512i bytes = _mm512_srli_epi32(_mm512_loadu_si512(group.scales), first == 0 ? 0 : 16);
    const __m128i upper_bytes = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m512i words = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(upper_bytes));
    const __m512i scale = _mm512_and_si512(_mm512_srli_epi16(words, 1), _mm512_set1_epi16(0x3f80));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        const uint8_t* const codes = group.codes + first * BLOCK_BYTES + 64 * half;
        const __m512i a = _mm512_loadu_si512(codes), b = is_one ? _mm512_setzero_si512() : _mm512_loadu_si512(codes + BLOCK_BYTES);
        // Of eight columns even ones are in the lower word, odd ones in the upper one.
        const __m512i even = _mm512_ternarylogic_epi32(upper, a, _mm512_slli_epi32(b, 16), 0xac);  // upper ? third : second
        const __m512i odd = _mm512_ternarylogic_epi32(upper, _mm512_srli_epi32(a, 16), b, 0xac);
#pragma GCC unroll 8
        for (int column = 0; column < 8; ++column) {
            const __m512i at = _mm512_srli_epi16(column % 2 ? odd : even, column / 2 * 4);
            const __m512i product = multiply_fp16(_mm512_permutexvar_epi16(at, table), scale);
            __m512i value = _mm512_and_si512(_mm512_srai_epi16(product, 3), bits);
            if (PLAIN) {
                const __mmask32 nonzero = _mm512_test_epi16_mask(value, _mm512_set1_epi16(0x7fff));
                value = _mm512_mask_add_epi16(value, nonzero, value, _mm512_set1_epi16(NVFP4_DOWN << 7));
            }
            _mm512_store_si512(tile + (8 * half + column) * LINE, value);
        }
    }
}

}  // namespace ocrquant::OCRQUANT_ISA
