// Rows of NVFP4 codes as the integer products read them.
//
// Codes are doubled, -12 to 12. A weight enters as w + 12, unsigned, so a sum of 16 products begins at -12 times the sum of the
// row's codes. All of it is exact in 16 bits. Columns are in the order in which the nibbles of a weight come apart: the lower
// ones of four bytes, then the upper ones.
#pragma once

#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

struct RowBlock {
    int8_t code[BLOCK / 4][4];  // words of 32 bits to be broadcast
    int32_t start;              // -12 * sum of codes; with AVX2 in the lower half of the word, the upper one is zero
    float scale;                // of the block, times 1/4 for the two doublings, times what the weight's scale lacks
};
alignas(16) constexpr int8_t ORDER[BLOCK] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};

inline float scale_from_e4m3(uint8_t code) {
    const uint32_t sign = uint32_t(code & 0x80) << 24, rest = code & 0x7f;
    const float value = float_from_bits(sign | rest << 20) * 0x1p120f;
    return rest == 0x7f ? float_from_bits(0x7fc00000u) : value;
}

#if defined(OCRQUANT_WITH_PLAIN)
constexpr float ROW_SCALE_UP = 1.0f;
#else
constexpr float ROW_SCALE_UP = SCALE_UP;
#endif

inline int32_t start_from_sum(int sum) {
#if defined(OCRQUANT_WITH_AVX2)
    return int32_t(uint16_t(-12 * sum));
#else
    return -12 * sum;
#endif
}

inline void prepare_block(const uint8_t* codes, uint8_t scale, RowBlock& block) {
#if defined(OCRQUANT_WITH_PLAIN)
    static constexpr int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int sum = 0;
    for (int i = 0; i < BLOCK; ++i) {
        const int k = ORDER[i], code = doubled[codes[k / 2] >> 4 * (k % 2) & 15];
        block.code[i / 4][i % 4] = int8_t(code);
        sum += code;
    }
#else
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15), twelve = _mm_set1_epi8(12);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i pairs = _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    const __m128i values = _mm_shuffle_epi8(doubled, pairs);
    const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(ORDER));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.code), _mm_shuffle_epi8(values, order));
    const __m128i sums = _mm_sad_epu8(_mm_add_epi8(values, twelve), _mm_setzero_si128());
    const int sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 12 * int(BLOCK);
#endif
    block.start = start_from_sum(sum);
    block.scale = scale_from_e4m3(scale) * (0.25f * ROW_SCALE_UP);
}

}  // namespace ocrquant::OCRQUANT_ISA
