// The last step of every producer: a finished row of bf16 is written into each form of its operand.
//
// The rules are those of ocrquant.formats, bit for bit: exact float32 divisions, rounding to nearest with ties to the
// even code, saturation, and NaN that stays within its row (FP8) or block of 16 (NVFP4). Rows are quantized after their
// rounding to bf16, never before. Rounding to a grid is the adder trick of formats.rounding: 1.5 * 2^23 grid steps of the
// value's binade, added, leave the rounded number of steps in the low bits.
#pragma once

#include "common/emit_wide.h"
#include "common/operand.h"
#include "common/rows.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr float E4M3_LARGEST = 448.0f;
constexpr float E2M1_LARGEST = 6.0f;
constexpr float TOKEN_SCALE_FLOOR = 1.0f / (E4M3_LARGEST * 512.0f);
constexpr int BLOCK = 16;   // elements that share an NVFP4 scale
constexpr int GROUP = VEC;  // blocks whose scales are computed together

// E4M3 codes of values that round to at most 448, or are NaN.
inline U32 e4m3_codes(F32 value) {
    const U32 bits = bit_cast<U32>(value), magnitude = bits & 0x7fffffffu;
    // Below 2^-6 the steps stay those of the first binade.
    const U32 power = (U32)clamped((I32)(magnitude & 0x7f800000u), 0x3c800000, 0x43800000);
    const F32 snapped = bit_cast<F32>(magnitude) + bit_cast<F32>(power) * 1572864.0f;
    const U32 code = (power >> 20) - 121u * 8u + (bit_cast<U32>(snapped) & 31u);
    const I32 is_nan = value != value;
    return (is_nan ? U32{} + 0x7fu : code) | (bits >> 24 & 0x80u);
}

// Values of non-negative E4M3 codes.
inline F32 e4m3_values(U32 code) {
    const F32 value = bit_cast<F32>(code << 20) * 0x1p120f;  // the difference of the biases
    const I32 is_nan = code == 0x7fu;
    return is_nan ? bit_cast<F32>(U32{} + 0x7fc00000u) : value;
}

// E2M1 codes 0 to 7 of non-negative values, 299 too large; NaN has the code of 6.
inline U32 raised_e2m1_codes(F32 value) {
    value = smaller(value, splat(E2M1_LARGEST));
    const U32 power = (U32)clamped((I32)(bit_cast<U32>(value) & 0x7f800000u), 0x3f800000, 0x40800000);
    const U32 bits = bit_cast<U32>(value + bit_cast<F32>(power) * 6291456.0f);
    // Low bits: grid steps within the binade; lead bits: two codes for each binade above that of 1.
    return (bits & 7u) + (bits >> 22);
}

inline U16x16 larger(U16x16 a, U16x16 b) {
#ifdef __AVX2__
    return (U16x16)_mm256_max_epu16((__m256i)a, (__m256i)b);
#else
    return a > b ? a : b;
#endif
}

inline uint16_t largest_of(U16x16 values) {
#ifdef __AVX2__
    const __m128i halves = _mm_max_epu16(_mm256_castsi256_si128((__m256i)values), _mm256_extracti128_si256((__m256i)values, 1));
    const __m128i inverted = _mm_xor_si128(halves, _mm_set1_epi16(-1));
    return uint16_t(~_mm_extract_epi16(_mm_minpos_epu16(inverted), 0));
#else
    uint16_t largest = 0;
    for (int j = 0; j < BLOCK; ++j) largest = largest < values[j] ? values[j] : largest;
    return largest;
#endif
}

// Largest magnitude as bf16 bits. Magnitudes order like their bits, and NaN comes out above infinity.
inline uint16_t largest_magnitude(const uint16_t* y, int64_t width) {
    U16x16 lanes[2] = {};
    const auto take = [&lanes](const uint16_t* from) {
        for (int j = 0; j < 2; ++j) lanes[j] = larger(lanes[j], load_as<U16x16>(from + j * BLOCK) & uint16_t(0x7fff));
    };
    int64_t i = 0;
    for (; i + TURN <= width; i += TURN) take(y + i);
    if (i < width) take(Padded<uint16_t>(y + i, width - i).values);
    return largest_of(larger(lanes[0], lanes[1]));
}

// Sixteen codes of one byte each.
inline U8x16 bytes(U16x16 codes) {
#ifdef __AVX2__
    return (U8x16)_mm_packus_epi16(_mm256_castsi256_si128((__m256i)codes), _mm256_extracti128_si256((__m256i)codes, 1));
#else
    return __builtin_convertvector(codes, U8x16);
#endif
}

inline float token_decode_scale(uint16_t largest) {
    const float scale = from_bf16(largest) / E4M3_LARGEST;
    return scale < TOKEN_SCALE_FLOOR ? TOKEN_SCALE_FLOOR : scale;  // NaN stays
}

// No clamp: by the choice of the scale no quotient passes 448 by more than a rounding of float32.
inline void emit_fp8(const uint16_t* y, int64_t width, float decode_scale, uint8_t* codes) {
#if defined(OCRQUANT_WITH_AVX512)
    if (emit_wide::is_usual(decode_scale)) return emit_wide::fp8(y, width, decode_scale, codes);
#endif
    const auto write = [decode_scale](const uint16_t* from, uint8_t* to) {
        for (int j = 0; j < VECTORS; j += 2) {
            const U32 low = e4m3_codes(load_wide(from + j * VEC) / decode_scale);
            const U32 high = e4m3_codes(load_wide(from + (j + 1) * VEC) / decode_scale);
            const U8x16 result = bytes(packed(low, high));
            std::memcpy(to + j * VEC, &result, sizeof(result));
        }
    };
    int64_t i = 0;
    for (; i + TURN <= width; i += TURN) write(y + i, codes + i);
    if (i == width) return;
    uint8_t tail[TURN];
    write(Padded<uint16_t>(y + i, width - i).values, tail);
    std::memcpy(codes + i, tail, size_t(width - i));
}

// Two codes a byte, the even column in the low nibble.
inline void store_nibbles(U16x16 codes, uint8_t* packed_codes) {
#ifdef __AVX2__
    const __m256i pairs = _mm256_madd_epi16((__m256i)codes, _mm256_set1_epi32(16 << 16 | 1));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(packed_codes), _mm_packus_epi16(words, words));
#else
    for (int j = 0; j < BLOCK / 2; ++j) packed_codes[j] = uint8_t(codes[2 * j] | codes[2 * j + 1] << 4);
#endif
}

inline void emit_nvfp4_block(const uint16_t* y, float divisor, uint8_t* packed_codes) {
    const U16x16 value = load_as<U16x16>(y), magnitude = value & uint16_t(0x7fff);
    // The sign of a NaN is dropped; magnitudes and their bound are positive as signed numbers too.
    const U16x16 is_nan = (U16x16)(magnitude > uint16_t(0x7f80));
    const U16x16 sign = (value >> 12) & uint16_t(8) & ~is_nan;
    uint16_t halves[BLOCK];
    std::memcpy(halves, &magnitude, sizeof(halves));
    const U32 low = raised_e2m1_codes(load_wide(halves) / divisor);
    const U32 high = raised_e2m1_codes(load_wide(halves + VEC) / divisor);
    store_nibbles((packed(low, high) - uint16_t(299)) | sign, packed_codes);
}

// At most GROUP blocks: their scales, then their elements against the rounded scales.
inline void emit_nvfp4_group(const uint16_t* y, int blocks, float encode_scale, uint8_t* packed_codes, uint8_t* scales) {
    float amax[GROUP] = {};
    for (int b = 0; b < blocks; ++b)
        amax[b] = from_bf16(largest_of(load_as<U16x16>(y + b * BLOCK) & uint16_t(0x7fff)));
    const F32 scaled = smaller(splat(E4M3_LARGEST), load_as<F32>(amax) / E2M1_LARGEST * encode_scale);
    const U32 codes = e4m3_codes(scaled);
    for (int b = 0; b < blocks; ++b) scales[b] = uint8_t(codes[b]);
    const F32 decode_scale = e4m3_values(codes) / encode_scale;
    const I32 is_zero = decode_scale == 0.0f;
    const F32 divisor = is_zero ? bit_cast<F32>(U32{} + 0x7f800000u) : decode_scale;
    for (int b = 0; b < blocks; ++b) emit_nvfp4_block(y + b * BLOCK, divisor[b], packed_codes + b * BLOCK / 2);
}

inline void emit_nvfp4(const uint16_t* y, int64_t width, float encode_scale, uint8_t* packed_codes, uint8_t* scales) {
    const auto groups = [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; b += GROUP)
            emit_nvfp4_group(y + b * BLOCK, int(last - b < GROUP ? last - b : GROUP), encode_scale, packed_codes + b * BLOCK / 2,
                             scales + b);
    };
#if defined(OCRQUANT_WITH_AVX512)
    for (int64_t b = 0, last; b < width / BLOCK; b = last) {
        last = b + emit_wide::BATCH < width / BLOCK ? b + emit_wide::BATCH : width / BLOCK;
        if (!emit_wide::nvfp4_batch(y + b * BLOCK, last - b, encode_scale, packed_codes + b * BLOCK / 2, scales + b)) groups(b, last);
    }
#else
    groups(0, width / BLOCK);
#endif
}

// Writes the quantized forms of `rows` rows from row r on, which lie one behind the other. Blocks do not know rows.
inline void emit_rows(const OperandRows& out, int64_t r, int64_t rows, const uint16_t* y, int64_t width) {
    if (out.fp8) {
        // All scales first, lest each row wait for its own.
        for (int64_t i = 0; i < rows; ++i) out.fp8_scale[r + i] = token_decode_scale(largest_magnitude(y + i * width, width));
        for (int64_t i = 0; i < rows; ++i) emit_fp8(y + i * width, width, out.fp8_scale[r + i], out.fp8 + (r + i) * width);
    }
    if (out.nvfp4)
        emit_nvfp4(y, rows * width, *out.encode_scale, out.nvfp4 + r * (width / 2), out.nvfp4_scale + r * (width / BLOCK));
}

}  // namespace ocrquant::OCRQUANT_ISA
