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
inline void store_unit(uint16_t* to, float value) { *to = uint16_t(bits_from_float(value) >> 16); }
using Element = uint16_t;
#else
inline void store_unit(float* to, float value) { *to = value; }
using Element = float;
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
        if (args.kind == LinearKind::fp8) {
            for (int64_t k = 0; k < count; ++k) store_unit(to + k, from_e4m3(codes[begin + k]) * up);
        } else {
            for (int64_t k = 0; k < count; ++k) store_unit(to + k, from_bf16(plain[begin + k]) * up);
        }
        for (int64_t k = count; k % FILL; ++k) store_unit(to + k, 0.0f);
    }
    return factor;
}

}  // namespace ocrquant::OCRQUANT_ISA
