// bf16 and fp32 as bits. Include from kernel files, after isa.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace ocrquant::OCRQUANT_ISA {

inline float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline uint32_t bits_from_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float from_bf16(uint16_t bits) { return float_from_bits(uint32_t(bits) << 16); }

// To nearest, ties to even; every NaN becomes the quiet NaN that torch writes (0x7FC0).
inline uint16_t to_bf16(float value) {
    const uint32_t bits = bits_from_float(value);
    const uint16_t rounded = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return (bits & 0x7fffffffu) > 0x7f800000u ? uint16_t(0x7fc0) : rounded;
}

}  // namespace ocrquant::OCRQUANT_ISA
