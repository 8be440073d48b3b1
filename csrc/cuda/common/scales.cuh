// Scales of rows and blocks, and where block scales lie. The rules are those of ocrquant.formats; amax comes as bf16 bits, which
// order like the magnitudes, NaN above infinity.
#pragma once

#include "common/numbers.cuh"

namespace ocrquant {

constexpr int BLOCK = 16;                                             // elements that share an NVFP4 scale
constexpr float TOKEN_SCALE_FLOOR = 1.0f / (E4M3_LARGEST * 512.0f);   // smallest dynamic scale of a token

// What a token's FP8 codes are multiplied by.
OCRQUANT_BOTH float token_decode_scale(uint32_t amax) {
    const float scale = low_half(amax) / E4M3_LARGEST;
    return scale < TOKEN_SCALE_FLOOR ? TOKEN_SCALE_FLOOR : scale;  // NaN stays
}

struct BlockScale {
    uint32_t code;    // E4M3, no sign
    Divisor divisor;  // value 0 where every code of the block is 0, NaN where the block holds a NaN
};

// E4M3(min(G * (amax / 6), 448)), and its value / G.
OCRQUANT_BOTH BlockScale block_scale(uint32_t amax, float encode_scale) {
    const float scaled = low_half(amax) / E2M1_LARGEST * encode_scale;
    const uint32_t code = pair_e4m3(scaled, 0.0f) & 0x7fu;
    const float value = from_e4m3(code) / encode_scale;
    return {code, value == 0.0f ? Divisor{0.0f, 0.0f} : divisor_of(value)};
}

// Eight elements of a block, four registers of two, as codes; the first in the lowest nibble.
OCRQUANT_BOTH uint32_t block_codes(const uint32_t (&y)[4], Divisor divisor) {
    if (is_nan(divisor.value)) {
        // Every magnitude is that of 6; a NaN element has no sign.
        uint32_t codes = 0x77777777u;
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = y[i / 2] >> 16 * (i % 2);
            if ((bits & 0x7fffu) <= 0x7f80u) codes |= (bits >> 12 & 8u) << 4 * i;
        }
        return codes;
    }
    constexpr float BOUND = 8.0f;
    float quotients[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float value = i % 2 ? high_half(y[i / 2]) : low_half(y[i / 2]);
        quotients[i] = copysignf(quotient(fabsf(value), divisor, BOUND), value);
    }
    return eight_e2m1(quotients);
}

// Codes of two elements of a row.
OCRQUANT_BOTH uint32_t token_codes(uint32_t y, Divisor scale) {
    constexpr float BOUND = 512.0f;
    const float low = low_half(y), high = high_half(y);
    if (!(scale.value < float_of(0x7f800000u))) return pair_e4m3(low / scale.value, high / scale.value);
    return pair_e4m3(copysignf(quotient(fabsf(low), scale, BOUND), low), copysignf(quotient(fabsf(high), scale, BOUND), high));
}

// The layout of block scales that block-scaled matrix products read: tiles of 128 rows by 4 scales, 512 bytes each, both padded
// with zeros. Source: CUTLASS, SfAtom of sm100_blockscaled_layout.hpp.
constexpr int SWIZZLE_ROWS = 128, SWIZZLE_SCALES = 4;

OCRQUANT_BOTH int64_t swizzled_rows(int64_t rows) { return ceil_div(rows, SWIZZLE_ROWS) * SWIZZLE_ROWS; }
OCRQUANT_BOTH int64_t swizzled_scales(int64_t scales) { return ceil_div(scales, SWIZZLE_SCALES) * SWIZZLE_SCALES; }

OCRQUANT_BOTH int64_t swizzled_offset(int64_t row, int64_t scale, int64_t scales) {
    const int64_t tile = row / SWIZZLE_ROWS * ceil_div(scales, SWIZZLE_SCALES) + scale / SWIZZLE_SCALES;
    return tile * (SWIZZLE_ROWS * SWIZZLE_SCALES) + row % 32 * 16 + row / 32 % 4 * 4 + scale % SWIZZLE_SCALES;
}

}  // namespace ocrquant
