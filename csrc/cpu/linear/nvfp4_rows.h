// Rows of NVFP4 codes as the integer products read them.
//
// Codes are doubled, -12 to 12. A weight enters as w + 12, unsigned, so a sum of 16 products begins at -12 times the sum of the
// row's codes. All of it is exact in 16 bits.
#pragma once

#include "linear/nvfp4_blocks.h"

namespace ocrquant::OCRQUANT_ISA {

struct RowBlock {
#if defined(OCRQUANT_WITH_AVX2)
    int8_t code[BLOCK / 2][4];  // each pair of columns twice: a word of 32 bits to be broadcast
#else
    int8_t code[BLOCK];
#endif
    int32_t start;  // -12 * sum of codes; with AVX2 OFFSET on top, in both halves of the word
    float scale;    // of the block, times 1/4 for the two doublings, times what the weight's scale lacks
};
constexpr int OFFSET = 8192;  // keeps sums of 16 bits positive

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
    return int32_t(uint32_t(OFFSET - 12 * sum) * 0x10001u);
#else
    return -12 * sum;
#endif
}

inline void prepare_block(const uint8_t* codes, uint8_t scale, RowBlock& block) {
#if defined(OCRQUANT_WITH_PLAIN)
    static constexpr int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int sum = 0;
    for (int i = 0; i < BLOCK; ++i) {
        block.code[i] = doubled[codes[i / 2] >> 4 * (i % 2) & 15];
        sum += block.code[i];
    }
#else
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15), twelve = _mm_set1_epi8(12);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    const __m128i pairs = _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    const __m128i values = _mm_shuffle_epi8(doubled, pairs);
#if defined(OCRQUANT_WITH_AVX2)
    __m128i* const to = reinterpret_cast<__m128i*>(block.code);
    _mm_storeu_si128(to, _mm_unpacklo_epi16(values, values));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(values, values));
#else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(block.code), values);
#endif
    const __m128i sums = _mm_sad_epu8(_mm_add_epi8(values, twelve), _mm_setzero_si128());
    const int sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 12 * int(BLOCK);
#endif
    block.start = start_from_sum(sum);
    block.scale = scale_from_e4m3(scale) * (0.25f * ROW_SCALE_UP);
}

}  // namespace ocrquant::OCRQUANT_ISA
