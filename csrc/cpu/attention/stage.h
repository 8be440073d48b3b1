// Keys and values of one block, brought from where they lie (bf16 or E4M3, one address a key) into fp32 panels.
//
//   keys   [panel of 16 keys][dim][16]              a score is summed over dim with one key a lane
//   values [panel of 16 columns][BLOCK keys][16]    an output is summed over keys with one column a lane; where a tile or two
//                                                   read them they keep their type, and are widened on the way
#pragma once

#include "common/lanes.h"

namespace ocrquant::OCRQUANT_ISA::attention {

using namespace wide;

// Keys of a block; blocks begin at multiples of it, whatever the pages.
constexpr int64_t BLOCK = 64;
constexpr int64_t PANELS = BLOCK / LANES;
// From one panel of values to the next: a line more than the panel, or all panels would fall on the same few sets of a cache.
constexpr int64_t VALUE_PANEL = (BLOCK + 1) * LANES;

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

inline float widen(uint16_t bits) { return from_bf16(bits); }

// The bits of E4M3 moved to where fp32 has them are the value times 2^-120, subnormals included.
inline float widen(uint8_t code) {
    const uint32_t sign = uint32_t(code & 0x80u) << 24, magnitude = code & 0x7fu;
    const float value = float_from_bits(magnitude << 20) * 0x1p120f;
    return float_from_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : bits_from_float(value)));
}

#if defined(OCRQUANT_WITH_AVX512) || defined(OCRQUANT_WITH_AVX2)

inline __m128i bytes16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m128i bytes8(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }

// Eight E4M3 codes. By way of fp16, where the same bits are the value times 2^-8 and whose conversion knows subnormals; NaN
// gets the exponent of NaN.
inline __m256 widen_codes(__m128i codes) {
    const __m128i code = _mm_cvtepu8_epi16(codes), magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(code, magnitude), 8);
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(0x1p8f));
}

inline __m256 widen8(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes16(from)), 16));
}
inline __m256 widen8(const uint8_t* from) { return widen_codes(bytes8(from)); }

inline Lanes widen16(const float* from) { return load(from); }

template <class T>
inline Lanes widen16(const T* from) {
#if defined(OCRQUANT_WITH_AVX512)
    return {_mm512_insertf32x8(_mm512_castps256_ps512(widen8(from)), widen8(from + 8), 1)};
#else
    return {widen8(from), widen8(from + 8)};
#endif
}

// Eight keys by eight columns, a column of `to` each. Pairs of bf16 travel as one 32-bit element and part at the end; keys 4 to
// 7 are loaded into the upper halves, since moves between halves are slow on some processors.
inline void columns8(const uint16_t* const* keys, int64_t d, float* to) {
    __m256 r[4];
    for (int k = 0; k < 4; ++k) {
        const __m256i low = _mm256_castsi128_si256(bytes16(keys[k] + d));
        r[k] = _mm256_castsi256_ps(_mm256_inserti128_si256(low, bytes16(keys[k + 4] + d), 1));
    }
    const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const __m256 c = _mm256_unpacklo_ps(r[2], r[3]), e = _mm256_unpackhi_ps(r[2], r[3]);
    const __m256 pairs[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee), _mm256_shuffle_ps(b, e, 0x44),
                             _mm256_shuffle_ps(b, e, 0xee)};
    for (int j = 0; j < 4; ++j) {
        const __m256i pair = _mm256_castps_si256(pairs[j]);
        _mm256_storeu_ps(to + 2 * j * LANES, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
        const __m256i odd = _mm256_and_si256(pair, _mm256_set1_epi32(int(0xffff0000u)));
        _mm256_storeu_ps(to + (2 * j + 1) * LANES, _mm256_castsi256_ps(odd));
    }
}

// The same from codes, which change places as bytes.
inline void columns8(const uint8_t* const* keys, int64_t d, float* to) {
    __m128i r[4], s[4];
    for (int k = 0; k < 4; ++k) r[k] = _mm_unpacklo_epi8(bytes8(keys[2 * k] + d), bytes8(keys[2 * k + 1] + d));
    for (int k = 0; k < 2; ++k) {
        s[2 * k] = _mm_unpacklo_epi16(r[2 * k], r[2 * k + 1]);
        s[2 * k + 1] = _mm_unpackhi_epi16(r[2 * k], r[2 * k + 1]);
    }
    for (int k = 0; k < 2; ++k) {
        const __m128i low = _mm_unpacklo_epi32(s[k], s[k + 2]), high = _mm_unpackhi_epi32(s[k], s[k + 2]);
        _mm256_storeu_ps(to + 4 * k * LANES, widen_codes(low));
        _mm256_storeu_ps(to + (4 * k + 1) * LANES, widen_codes(_mm_srli_si128(low, 8)));
        _mm256_storeu_ps(to + (4 * k + 2) * LANES, widen_codes(high));
        _mm256_storeu_ps(to + (4 * k + 3) * LANES, widen_codes(_mm_srli_si128(high, 8)));
    }
}

// Columns of eight keys as far as whole vectors go; returns how far.
template <class T>
inline int64_t columns(const T* const* keys, int64_t dim, float* to) {
    int64_t d = 0;
    for (; d + 8 <= dim; d += 8) columns8(keys, d, to + d * LANES);
    return d;
}

#else

inline Lanes widen16(const float* from) { return load(from); }

template <class T>
inline Lanes widen16(const T* from) {
    float wide[LANES];
    for (int64_t i = 0; i < LANES; ++i) wide[i] = widen(from[i]);
    return load(wide);
}

template <class T>
inline int64_t columns(const T* const*, int64_t, float*) {
    return 0;
}

#endif

// `count` values of a row to fp32.
template <class T>
inline void widen_row(const T* from, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, widen16(from + i));
    for (; i < count; ++i) to[i] = widen(from[i]);
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

// Sixteen values as fp32 or as they lie.
template <class T>
inline void move16(const T* from, float* to) {
    store(to, widen16(from));
}
template <class T>
inline void move16(const T* from, T* to) {
    std::memcpy(to, from, LANES * sizeof(T));
}

// Values 0 .. count of a block; columns from dim to the end of the last panel are zero.
template <class T, class To>
inline void stage_values(const T* const* rows, int64_t count, int64_t dim, To* panels) {
    const int64_t whole = dim / LANES * LANES;
    for (int64_t k = 0; k < count; ++k) {
        for (int64_t d = 0; d < whole; d += LANES) move16(rows[k] + d, panels + d / LANES * VALUE_PANEL + k * LANES);
        if (whole == dim) continue;
        T last[LANES] = {};
        for (int64_t d = whole; d < dim; ++d) last[d - whole] = rows[k][d];
        move16(last, panels + whole / LANES * VALUE_PANEL + k * LANES);
    }
}

}  // namespace ocrquant::OCRQUANT_ISA::attention
