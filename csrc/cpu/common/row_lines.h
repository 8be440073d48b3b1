// Loops over a row by lines of 32 numbers in registers of AVX-512; the bits of rows.h. Include where OCRQUANT_WITH_AVX512 is set.
#pragma once

#include "common/bf16_lines.h"
#include "common/vec.h"

namespace ocrquant::OCRQUANT_ISA {

// f(first column, how many): whole lines of 32, then the rest.
template <class Function>
inline void for_lines(int64_t width, Function f) {
    int64_t i = 0;
    for (; i + LINE_NUMBERS <= width; i += LINE_NUMBERS) f(i, LINE_NUMBERS);
    if (i < width) f(i, width - i);
}

inline Wide32 columns(const uint16_t* x, int64_t count) { return count == LINE_NUMBERS ? widen32(x) : widen_some(x, count); }
inline Wide32 columns(const float* x, int64_t count) { return count == LINE_NUMBERS ? load32(x) : load_some(x, count); }

// Zeros from `count` on.
inline Wide32 kept(Wide32 x, int64_t count) {
    const uint32_t mask = uint32_t((1ull << count) - 1);
    return {_mm512_maskz_mov_ps(__mmask16(mask), x.a), _mm512_maskz_mov_ps(__mmask16(mask >> 16), x.b)};
}

inline void store_columns(uint16_t* y, Wide32 x, int64_t count) { count == LINE_NUMBERS ? store32(y, x) : store_some(y, x, count); }

inline Wide32 all32(float x) { return {_mm512_set1_ps(x), _mm512_set1_ps(x)}; }

#define OCRQUANT_OPERATOR(op)                                                                              \
    inline Wide32 operator op(Wide32 x, Wide32 y) { return {x.a op y.a, x.b op y.b}; }                       \
    inline Wide32 operator op(Wide32 x, float y) { return x op all32(y); }                                   \
    inline Wide32 operator op(float x, Wide32 y) { return all32(x) op y; }
OCRQUANT_OPERATOR(+)
OCRQUANT_OPERATOR(-)
OCRQUANT_OPERATOR(*)
OCRQUANT_OPERATOR(/)
#undef OCRQUANT_OPERATOR

inline Wide32 operator-(Wide32 x) { return {-x.a, -x.b}; }

// What the functions of vec.h need, with which they work on lines as well.
inline __m512 within(__m512 x, float low, float high) {
    return _mm512_maskz_min_ps(0xffff, _mm512_set1_ps(high), _mm512_maskz_max_ps(0xffff, _mm512_set1_ps(low), x));
}
inline Wide32 within(Wide32 x, float low, float high) { return {within(x.a, low, high), within(x.b, low, high)}; }

inline __m512 scaled(__m512 x, __m512 shifted) {
    const __m512i power = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(shifted), 23);
    return (x + x) * _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_set1_epi32(126 << 23)));
}
inline Wide32 scaled(Wide32 x, Wide32 shifted) { return {scaled(x.a, shifted.a), scaled(x.b, shifted.b)}; }

inline Wide32 widened(__m512i line) { return {widened16(_mm512_castsi512_si256(line)), widened16(_mm512_extracti64x4_epi64(line, 1))}; }

// Rounded to bf16 and back.
inline Wide32 rounded(Wide32 x) { return widened(rounded32(x)); }

// See `inverse_rms` of rows.h.
inline float inverse_rms_of_lines(const uint16_t* x, int64_t width, float eps) {
    Wide32 lanes = all32(0.0f);
    for_lines(width, [&](int64_t i, int64_t n) {
        const Wide32 v = columns(x + i, n);
        lanes = lanes + v * v;
    });
    return 1.0f / __builtin_sqrtf(sum32(lanes) / float(width) + eps);
}

}  // namespace ocrquant::OCRQUANT_ISA
