// bf16 numbers, sixteen or a line of 32 in order, as registers of AVX-512; the bits of vec.h. Include where OCRQUANT_WITH_AVX512 is set.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int64_t LINE_NUMBERS = 32;

struct Wide32 {
    __m512 a, b;
};

inline __m512 widened16(__m256i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)); }

inline __m512 widen16(const uint16_t* from) { return widened16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }

// To nearest, ties to even; every NaN becomes 0x7fc0.
inline __m256i rounded16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(nearest, is_nan, _mm512_set1_epi32(0x7fc00000)), 16));
}

inline Wide32 widen32(const uint16_t* from) { return {widen16(from), widen16(from + 16)}; }

// The first `count` of 32, then zeros.
inline Wide32 widen_some(const uint16_t* from, int64_t count) {
    const __m512i bits = _mm512_maskz_loadu_epi16(__mmask32((1ull << count) - 1), from);
    return {widened16(_mm512_castsi512_si256(bits)), widened16(_mm512_extracti64x4_epi64(bits, 1))};
}

inline Wide32 load32(const float* from) { return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)}; }

inline Wide32 load_some(const float* from, int64_t count) {
    const uint32_t kept = uint32_t((1ull << count) - 1);
    return {_mm512_maskz_loadu_ps(__mmask16(kept), from), _mm512_maskz_loadu_ps(__mmask16(kept >> 16), from + 16)};
}

// The same of 32. The processor's own conversion counts subnormal numbers as zero and keeps what a NaN carries, so it is taken only
// where there are neither.
inline __m512i rounded32(Wide32 x) {
    constexpr int SUBNORMAL_OR_NAN = 0x20 | 0x80 | 0x01;
    const __mmask16 first = _mm512_fpclass_ps_mask(x.a, SUBNORMAL_OR_NAN), second = _mm512_fpclass_ps_mask(x.b, SUBNORMAL_OR_NAN);
    if (__builtin_expect(_kortestz_mask16_u8(first, second), 1)) return (__m512i)_mm512_cvtne2ps_pbh(x.b, x.a);
    return _mm512_inserti64x4(_mm512_castsi256_si512(rounded16(x.a)), rounded16(x.b), 1);
}

inline void store32(uint16_t* to, Wide32 x) { _mm512_storeu_si512(to, rounded32(x)); }

inline void store_some(uint16_t* to, Wide32 x, int64_t count) {
    _mm512_mask_storeu_epi16(to, __mmask32((1ull << count) - 1), rounded32(x));
}

// The sum of 16 lanes: halves, their halves, and so on.
inline float sum16(__m512 x) {
    const __m256 all = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// The sum of 32 lanes in the tree of `sum` in rows.h.
inline float sum32(Wide32 x) { return sum16(_mm512_add_ps(x.a, x.b)); }

}  // namespace ocrquant::OCRQUANT_ISA
