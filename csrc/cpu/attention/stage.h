// Keys and values of one block, brought from where they lie (bf16 or E4M3, one address a key) into fp32 panels.
//
//   keys   [panel of 16 keys][dim][16]              a score is summed over dim with one key a lane
//   values [panel of 16 columns][BLOCK keys][16]    an output is summed over keys with one column a lane
#pragma once

#include "common/lanes.h"

namespace ocrquant::OCRQUANT_ISA::attention {

using namespace wide;

// Keys of a block; blocks begin at multiples of it, whatever the pages.
constexpr int64_t BLOCK = 64;
constexpr int64_t PANELS = BLOCK / LANES;

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

inline float widen(uint16_t bits) { return from_bf16(bits); }

// The bits of E4M3 moved to where fp32 has them are the value times 2^-120, subnormals included.
inline float widen(uint8_t code) {
    const uint32_t sign = uint32_t(code & 0x80u) << 24, magnitude = code & 0x7fu;
    const float value = float_from_bits(magnitude << 20) * 0x1p120f;
    return float_from_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : bits_from_float(value)));
}

#if defined(OCRQUANT_WITH_AVX512) || defined(OCRQUANT_WITH_AVX2)

inline __m256 widen8(const uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline __m256 widen8(const uint8_t* from) {
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, magnitude), 24);
    const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    return _mm256_or_ps(_mm256_or_ps(value, _mm256_castsi256_ps(sign)),
                        _mm256_castsi256_ps(_mm256_and_si256(nan, _mm256_set1_epi32(0x7fc00000))));
}

// Rows become columns.
inline void transpose8(__m256 (&r)[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

// Eight keys by sixteen columns: pairs of bf16 travel as one 32-bit element and part at the end.
inline void columns16(const uint16_t* const* keys, int64_t d, float* to) {
    __m256 r[8];
    for (int k = 0; k < 8; ++k) r[k] = _mm256_loadu_ps(reinterpret_cast<const float*>(keys[k] + d));
    transpose8(r);
    for (int j = 0; j < 8; ++j) {
        const __m256i pair = _mm256_castps_si256(r[j]);
        _mm256_storeu_ps(to + 2 * j * LANES, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
        const __m256i odd = _mm256_and_si256(pair, _mm256_set1_epi32(int(0xffff0000u)));
        _mm256_storeu_ps(to + (2 * j + 1) * LANES, _mm256_castsi256_ps(odd));
    }
}

template <class T>
inline void columns8(const T* const* keys, int64_t d, float* to) {
    __m256 r[8];
    for (int k = 0; k < 8; ++k) r[k] = widen8(keys[k] + d);
    transpose8(r);
    for (int j = 0; j < 8; ++j) _mm256_storeu_ps(to + j * LANES, r[j]);
}

inline int64_t wide_columns(const uint16_t* const* keys, int64_t dim, float* to) {
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) columns16(keys, d, to + d * LANES);
    return d;
}

inline int64_t wide_columns(const uint8_t* const*, int64_t, float*) { return 0; }

// Columns 0 .. dim of eight keys, as far as whole vectors go; returns how far.
template <class T>
inline int64_t columns(const T* const* keys, int64_t dim, float* to) {
    int64_t d = wide_columns(keys, dim, to);
    for (; d + 8 <= dim; d += 8) columns8(keys, d, to + d * LANES);
    return d;
}

template <class T>
inline int64_t widened(const T* from, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, widen8(from + i));
    return i;
}

#else

template <class T>
inline int64_t columns(const T* const*, int64_t, float*) {
    return 0;
}

template <class T>
inline int64_t widened(const T*, int64_t, float*) {
    return 0;
}

#endif

// `count` values of a row to fp32.
template <class T>
inline void widen_row(const T* from, int64_t count, float* to) {
    for (int64_t i = widened(from, count, to); i < count; ++i) to[i] = widen(from[i]);
}

// Keys 0 .. count of a block; lanes beyond hold the first key again, and what they give is never used.
template <class T>
inline void stage_keys(const T* const* rows, int64_t count, int64_t dim, float* panels) {
    for (int64_t first = 0; first < count; first += 8) {
        const T* keys[8];
        for (int64_t k = 0; k < 8; ++k) keys[k] = rows[first + k < count ? first + k : 0];
        float* to = panels + first / LANES * dim * LANES + first % LANES;
        for (int64_t d = columns(keys, dim, to); d < dim; ++d) {
            for (int64_t k = 0; k < 8; ++k) to[d * LANES + k] = widen(keys[k][d]);
        }
    }
    // Half a panel that nothing was written to would be arithmetic on what lies there.
    if (count % LANES != 0 && count % LANES <= 8) {
        float* to = panels + count / LANES * dim * LANES + 8;
        for (int64_t d = 0; d < dim; ++d) {
            for (int64_t k = 0; k < 8; ++k) to[d * LANES + k] = 0.f;
        }
    }
}

// Values 0 .. count of a block; columns from dim to the end of the last panel are zero.
template <class T>
inline void stage_values(const T* const* rows, int64_t count, int64_t dim, float* panels) {
    for (int64_t first = 0; first < dim; first += LANES) {
        float* to = panels + first * BLOCK;
        const int64_t width = dim - first < LANES ? dim - first : LANES;
        for (int64_t k = 0; k < count; ++k, to += LANES) {
            widen_row(rows[k] + first, width, to);
            for (int64_t i = width; i < LANES; ++i) to[i] = 0.f;
        }
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
