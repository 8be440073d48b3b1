// Eight float32 at a time, in the vector types of GCC and Clang: AVX2 registers where the build has them, pairs of
// SSE or NEON registers elsewhere. Rows are bf16.
//
// Results are the same on every instruction set: the build passes -ffp-contract=off, sums have a fixed number of lanes
// and a fixed tree, and a ragged tail goes through the same code as whole vectors, padded with zeros.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/isa.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int VEC = 8;

typedef float F32 __attribute__((vector_size(32)));
typedef uint32_t U32 __attribute__((vector_size(32)));
typedef int32_t I32 __attribute__((vector_size(32)));
typedef uint16_t U16 __attribute__((vector_size(16)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));
typedef uint8_t U8x16 __attribute__((vector_size(16)));

template <class To, class From>
inline To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

template <class Vector, class Element>
inline Vector load_as(const Element* from) {
    Vector v;
    std::memcpy(&v, from, sizeof(Vector));
    return v;
}

inline F32 splat(float value) { return F32{} + value; }

// The smaller or larger of the two; `b` where either is NaN.
inline F32 smaller(F32 a, F32 b) {
#ifdef __AVX2__
    return (F32)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

inline F32 larger(F32 a, F32 b) {
#ifdef __AVX2__
    return (F32)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

inline I32 clamped(I32 value, int32_t low, int32_t high) {
    const I32 least = I32{} + low, most = I32{} + high;
#ifdef __AVX2__
    return (I32)_mm256_min_epi32(_mm256_max_epi32((__m256i)value, (__m256i)least), (__m256i)most);
#else
    value = value < least ? least : value;
    return value > most ? most : value;
#endif
}

inline F32 widen(U16 bits) {
#ifdef __AVX2__
    return bit_cast<F32>(_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)bits), 16));
#else
    return bit_cast<F32>(__builtin_convertvector(bits, U32) << 16);
#endif
}

// bf16 bits in the upper half of each element, to nearest, ties to even; every NaN becomes 0x7fc0.
inline U32 round_up_there(F32 value) {
    const U32 bits = bit_cast<U32>(value);
    const U32 nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
    const I32 is_nan = value != value;
    return is_nan ? U32{} + 0x7fc00000u : nearest;
}

// Rounded to bf16 and back.
inline F32 rounded(F32 value) { return bit_cast<F32>(round_up_there(value) & 0xffff0000u); }

// Sixteen unsigned values below 2^16 to 16 bits each.
inline U16x16 packed(U32 low, U32 high) {
#ifdef __AVX2__
    return (U16x16)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
#else
    const U16 first = __builtin_convertvector(low, U16), second = __builtin_convertvector(high, U16);
    U16x16 both;
    std::memcpy(&both, &first, sizeof(first));
    std::memcpy(reinterpret_cast<char*>(&both) + sizeof(first), &second, sizeof(second));
    return both;
#endif
}

inline U16x16 narrow(F32 low, F32 high) { return packed(round_up_there(low) >> 16, round_up_there(high) >> 16); }

// A row rounded to bf16, sixteen at a time; one by one the loop over `to_bf16` takes three times as long.
inline void narrow_row(const float* from, int64_t count, uint16_t* to) {
    for (int64_t i = 0; i < count; i += 2 * VEC) {
        if (i + 2 * VEC <= count) {
            const U16x16 both = narrow(load_as<F32>(from + i), load_as<F32>(from + i + VEC));
            std::memcpy(to + i, &both, sizeof(both));
        } else {
            float rest[2 * VEC] = {};
            std::memcpy(rest, from + i, size_t(count - i) * sizeof(float));
            const U16x16 both = narrow(load_as<F32>(rest), load_as<F32>(rest + VEC));
            std::memcpy(to + i, &both, size_t(count - i) * sizeof(uint16_t));
        }
    }
}

inline F32 within(F32 a, float low, float high) { return smaller(splat(high), larger(splat(low), a)); }

// a * 2^n, n in the low bits of `shifted`; as 2^(n-1) twice over, since n reaches 128.
inline F32 scaled(F32 a, F32 shifted) {
    return (a + a) * bit_cast<F32>((bit_cast<U32>(shifted) << 23) + (126u << 23));
}

// e^x with a relative error of at most 8.4e-8 (2^24 points over the range) for x >= -86; below, e^-86, which no sum with 1
// can tell from 0. Infinity from 88.73 on, NaN for NaN. Cephes' polynomial on [-ln2/2, ln2/2], in an order with short
// chains. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. For F32, and for the Turn of turn.h.
template <class V>
inline V exponential(const V& exponent) {
    constexpr float ROUND = 12582912.0f;
    const V x = within(exponent, -86.0f, 89.0f);
    const V shifted = x * 1.44269504f + ROUND;
    const V n = shifted - ROUND;
    const V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const V r2 = r * r;
    const V low = r * 1.6666665459e-1f + 5.0000001201e-1f;
    const V middle = r * 8.3334519073e-3f + 4.1665795894e-2f;
    const V high = r * 1.9875691500e-4f + 1.3981999507e-3f;
    return scaled(((high * r2 + middle) * r2 + low) * r2 + r + 1.0f, shifted);
}

template <class V>
inline V sigmoid(const V& x) {
    return 1.0f / (1.0f + exponential(-x));
}

template <class V>
inline V silu(const V& x) {
    return x / (1.0f + exponential(-x));
}

}  // namespace ocrquant::OCRQUANT_ISA
