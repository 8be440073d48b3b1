// Rows as the float products read them: fp32 values, or with AVX-512 pairs of bf16; in chunks of columns.
#pragma once

#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

#if defined(OCRQUANT_WITH_AVX512)
using Unit = uint32_t;  // two columns in bf16
constexpr int64_t UNIT = 2;
#else
using Unit = float;
constexpr int64_t UNIT = 1;
#endif
constexpr int64_t CHUNK_UNITS = CHUNK / UNIT;
constexpr int64_t COLUMNS = 4;  // columns are padded to a multiple of this

// With AVX2 an E4M3 weight is read as bits moved into place, which is 2**-120 of its value. Rows are multiplied by 2**s, and
// `finish` multiplies by 2**(120 - s), such that nothing in between leaves the range of fp32.
#if defined(OCRQUANT_WITH_AVX2)
constexpr int WEIGHT_DOWN = 120;
#else
constexpr int WEIGHT_DOWN = 0;
#endif
constexpr int ROW_EXPONENT = 60;  // rows are moved to about this binade, as far as 0 <= s <= WEIGHT_DOWN allows

inline float power_of_two(int exponent) { return float_from_bits(uint32_t(exponent + 127) << 23); }

inline float from_e4m3(uint8_t code) {
    const uint32_t sign = uint32_t(code & 0x80) << 24, rest = code & 0x7f;
    const float value = float_from_bits(sign | rest << 20) * 0x1p120f;
    return rest == 0x7f ? float_from_bits(0x7fc00000u) : value;
}

#if defined(OCRQUANT_WITH_AVX512)

using Element = uint16_t;

// Codes in rows enter times 2**CODES_UP: with AMX an E4M3 weight is read in 2**-8 of its value, see fp8_by_shifts.
#if defined(OCRQUANT_WITH_AMX)
constexpr int CODES_UP = 8;
#else
constexpr int CODES_UP = 0;
#endif

// bf16 bits of every non-negative E4M3 code times 2**UP, high and low bytes apart.
struct E4m3Table {
    alignas(64) uint8_t high[128];
    alignas(64) uint8_t low[128];
};
template <int UP>
const E4m3Table& e4m3_table() {
    static const E4m3Table table = [] {
        E4m3Table t;
        for (int code = 0; code < 128; ++code) {
            const uint32_t bits = bits_from_float(from_e4m3(uint8_t(code)) * power_of_two(UP));
            t.high[code] = uint8_t(bits >> 24);
            t.low[code] = uint8_t(bits >> 16);
        }
        return t;
    }();
    return table;
}

// Some columns of a row in bf16: as they are, or from E4M3 codes. Their one factor is 1. One code after another, each a product of
// its own, 16 rows of 512 columns took 19 us, more than their product with [192, 512] (Xeon family 6 model 207, 2026-11-30).
inline __mmask32 columns_left(int64_t count) { return count < 32 ? (__mmask32(1) << count) - 1 : ~__mmask32(0); }
inline void convert(const uint16_t* from, int64_t count, float, uint16_t* to) {
    for (int64_t k = 0; k < count; k += 32) {
        const __mmask32 some = columns_left(count - k);
        _mm512_mask_storeu_epi16(to + k, some, _mm512_maskz_loadu_epi16(some, from + k));
    }
}
inline __m512i codes_in_bf16(const E4m3Table& table, const uint8_t* codes, __mmask32 some) {
    const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
    const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
    // A code in the lower byte of each word: lookups read seven bits of every byte and give zero for the upper one.
    const __m512i v = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(some, codes));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(v, _mm512_set1_epi16(0x80)), 8);
    const __m512i high = _mm512_slli_epi16(_mm512_permutex2var_epi8(high0, v, high1), 8);
    const __m512i low = _mm512_permutex2var_epi8(low0, v, low1);
    return _mm512_or_si512(_mm512_or_si512(high, low), sign);
}
inline void convert(const uint8_t* codes, int64_t count, float, uint16_t* to) {
    const E4m3Table& table = e4m3_table<CODES_UP>();
    for (int64_t k = 0; k < count; k += 32) {
        const __mmask32 some = columns_left(count - k);
        _mm512_mask_storeu_epi16(to + k, some, codes_in_bf16(table, codes + k, some));
    }
}

#else

using Element = float;

// Some columns of a row, from bf16 or from E4M3 codes, times `up`.
inline void convert(const uint16_t* from, int64_t count, float up, float* to) {
    for (int64_t k = 0; k < count; ++k) to[k] = from_bf16(from[k]) * up;
}
inline void convert(const uint8_t* codes, int64_t count, float up, float* to) {
    for (int64_t k = 0; k < count; ++k) to[k] = from_e4m3(codes[k]) * up;
}

#endif

// The s of a row in bf16.
inline int row_shift(const uint16_t* row, int64_t width) {
    if (WEIGHT_DOWN == 0) return 0;
    uint16_t largest = 0;
    for (int64_t k = 0; k < width; ++k) {
        const uint16_t magnitude = row[k] & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return int(larger(0, smaller(ROW_EXPONENT + 127 - (largest >> 7), WEIGHT_DOWN)));
}

// Converts row `row` into pieces: column k goes to first[k / PIECE * stride + k % PIECE], in elements; zeros fill up the last
// FILL columns. Returns what its sums are to be multiplied by, a power of two.
template <int64_t PIECE, int64_t FILL>
inline float prepare_row(const LinearArgs& args, int64_t row, Element* first, int64_t stride) {
    const int64_t width = args.in_features;
    const uint16_t* const plain = reinterpret_cast<const uint16_t*>(args.x) + row * width;
    const uint8_t* const codes = args.x + row * width;
    const int shift = args.kind == LinearKind::fp8         ? int(smaller(ROW_EXPONENT, WEIGHT_DOWN))
                      : args.kind == LinearKind::fp8_plain ? row_shift(plain, width)
                                                           : 0;
    const bool is_fp8 = args.kind == LinearKind::fp8 || args.kind == LinearKind::fp8_plain;
    const float up = power_of_two(shift), factor = power_of_two(is_fp8 ? WEIGHT_DOWN - shift : 0);
    for (int64_t begin = 0; begin < width; begin += PIECE) {
        Element* const to = first + begin / PIECE * stride;
        const int64_t count = smaller(PIECE, width - begin);
        args.kind == LinearKind::fp8 ? convert(codes + begin, count, up, to) : convert(plain + begin, count, up, to);
        for (int64_t k = count; k % FILL; ++k) to[k] = Element(0);
    }
    return factor;
}

}  // namespace ocrquant::OCRQUANT_ISA
