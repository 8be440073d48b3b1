// bf16, E4M3 and E2M1 as bits, and quotients that are exact. The rules are those of ocrquant.formats.
//
// Every conversion has a portable form, which the host tests run over all inputs; where an architecture has an instruction, the
// device form uses it and the tests on a GPU compare the two.
#pragma once

#include "common/device.cuh"

#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define OCRQUANT_HAS_E2M1 1
#endif

namespace ocrquant {

constexpr float E4M3_LARGEST = 448.0f, E2M1_LARGEST = 6.0f;

OCRQUANT_BOTH float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

OCRQUANT_BOTH uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

OCRQUANT_BOTH bool is_nan(float value) { return (bits_of(value) & 0x7fffffffu) > 0x7f800000u; }

// A pair of bf16 in a register, the first in the low half.
OCRQUANT_BOTH float low_half(uint32_t pair) { return float_of(pair << 16); }
OCRQUANT_BOTH float high_half(uint32_t pair) { return float_of(pair & 0xffff0000u); }

// To nearest, ties to even; NaN becomes 0x7fc0 as in torch on a CPU.
OCRQUANT_BOTH uint32_t portable_bf16(float value) {
    const uint32_t bits = bits_of(value);
    return is_nan(value) ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// The instruction's NaN is 0x7fff.
OCRQUANT_BOTH uint32_t pair_bf16(float low, float high) {
#if defined(__CUDA_ARCH__)
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return portable_bf16(low) | portable_bf16(high) << 16;
#endif
}

OCRQUANT_BOTH float rounded_bf16(float value) { return low_half(pair_bf16(value, 0.0f)); }

// Code of the magnitude, saturated; NaN is 0x7f. The sign is the value's, a NaN's too.
//
// Rounding adds 1.5 * 2^23 grid steps of the value's binade, which leaves the number of steps in the low bits.
OCRQUANT_BOTH uint32_t portable_e4m3(float value) {
    const uint32_t sign = bits_of(value) >> 24 & 0x80u;
    if (is_nan(value)) return sign | 0x7fu;
    const float magnitude = fminf(fabsf(value), E4M3_LARGEST);
    // Below 2^-6 the steps stay those of the first binade.
    uint32_t power = bits_of(magnitude) & 0x7f800000u;
    power = power < 0x3c800000u ? 0x3c800000u : power;
    const float snapped = magnitude + float_of(power) * 1572864.0f;
    return sign | ((power >> 20) - 121u * 8u + (bits_of(snapped) & 31u));
}

// Two codes, the first in the low byte. The instruction's NaN has no sign.
OCRQUANT_BOTH uint32_t pair_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__)
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return portable_e4m3(low) | portable_e4m3(high) << 8;
#endif
}

// Value of a code of no sign.
OCRQUANT_BOTH float from_e4m3(uint32_t code) {
    return code == 0x7fu ? float_of(0x7fc00000u) : float_of(code << 20) * 0x1p120f;
}

// Code of the value, saturated; NaN is that of +6.
OCRQUANT_BOTH uint32_t portable_e2m1(float value) {
    if (is_nan(value)) return 7u;
    const float magnitude = fminf(fabsf(value), E2M1_LARGEST);
    uint32_t power = bits_of(magnitude) & 0x7f800000u;
    power = power < 0x3f800000u ? 0x3f800000u : power;
    const uint32_t bits = bits_of(magnitude + float_of(power) * 6291456.0f);
    // Low bits: grid steps within the binade; lead bits: two codes for each binade above that of 1.
    return (bits_of(value) >> 28 & 8u) | ((bits & 7u) + (bits >> 22) - 299u);
}

// Eight codes, the first in the lowest nibble.
OCRQUANT_BOTH uint32_t eight_e2m1(const float (&x)[8]) {
#if defined(OCRQUANT_HAS_E2M1)
    uint32_t codes;
    asm("{\n\t.reg .b8 a, b, c, d;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n\tcvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n\tcvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n\t"
        "mov.b32 %0, {a, b, c, d};\n\t}"
        : "=r"(codes)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
    return codes;
#else
    uint32_t codes = 0;
    for (int i = 0; i < 8; ++i) codes |= portable_e2m1(x[i]) << 4 * i;
    return codes;
#endif
}

// What many values are divided by.
struct Divisor {
    float value, reciprocal;
};

OCRQUANT_BOTH Divisor divisor_of(float value) { return {value, 1.0f / value}; }

// magnitude / d for a magnitude >= 0 that is a bf16 number, rounded as a division rounds it, or something beyond `bound` where
// the quotient lies beyond it; NaN where the magnitude is NaN. `bound` keeps infinities out of the correction.
//
// Equal to the division for all 2^7 significands of bf16 by all 2^23 of fp32; quotients that are subnormal may differ.
OCRQUANT_BOTH float quotient(float magnitude, Divisor d, float bound) {
    const float q = fminf(magnitude * d.reciprocal, bound);
    return fmaf(fmaf(-q, d.value, magnitude), d.reciprocal, q);
}

// g / (1 + e^-g).
OCRQUANT_BOTH float silu(float g) {
#if defined(__CUDA_ARCH__)
    float reciprocal;
    asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + expf(-g)));
    return g * reciprocal;
#else
    return g / (1.0f + expf(-g));
#endif
}

}  // namespace ocrquant
