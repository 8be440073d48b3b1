// NVFP4 codes of emit.h, a block of sixteen elements in one register of AVX-512: the same operations, so the same bits.
//
// Eight at a time an element took 0.95 ns, and takes 0.62 (Xeon family 6 model 207, 2026-11-30). FP8 takes 0.4 either way, which is
// its division.
#pragma once

#include <cstdint>

#include "common/isa.h"

#if defined(OCRQUANT_WITH_AVX512)

#include "common/bf16_lines.h"

namespace ocrquant::OCRQUANT_ISA::emit_wide {

inline __m512i all(uint32_t x) { return _mm512_set1_epi32(int(x)); }

// The exponent bits of magnitudes, not below or above those of two powers of two, as a number times `steps`.
inline __m512 steps_of(__m512i magnitude, uint32_t least, uint32_t most, float steps, __m512i* power) {
    const __m512i exponent = _mm512_and_si512(magnitude, all(0x7f800000u));
    *power = _mm512_maskz_min_epi32(0xffff, _mm512_maskz_max_epi32(0xffff, exponent, all(least)), all(most));
    return _mm512_mul_ps(_mm512_castsi512_ps(*power), _mm512_set1_ps(steps));
}

// See `e4m3_codes` of emit.h.
inline __m512i e4m3_codes(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value), magnitude = _mm512_and_si512(bits, all(0x7fffffffu));
    __m512i power;
    const __m512 steps = steps_of(magnitude, 0x3c800000u, 0x43800000u, 1572864.0f, &power);
    const __m512i snapped = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), steps));
    const __m512i base = _mm512_sub_epi32(_mm512_srli_epi32(power, 20), all(121u * 8u));
    const __m512i code = _mm512_add_epi32(base, _mm512_and_si512(snapped, all(31u)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), all(0x80u));
    return _mm512_or_si512(_mm512_mask_mov_epi32(code, is_nan, all(0x7fu)), sign);
}

// See `e4m3_values` of emit.h.
inline __m512 e4m3_values(__m512i codes) {
    const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(codes, 20)), _mm512_set1_ps(0x1p120f));
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(codes, all(0x7fu));
    return _mm512_mask_mov_ps(value, is_nan, _mm512_castsi512_ps(all(0x7fc00000u)));
}

// Eight bytes of NVFP4 codes of a block of bf16 values; see `emit_nvfp4_block`.
inline __m128i nvfp4_codes(__m256i values, __m512 divisor) {
    const __m512i bits = _mm512_castps_si512(widened16(values));
    const __m512i magnitude = _mm512_and_si512(bits, all(0x7fffffffu));
    const __mmask16 is_number = _mm512_cmple_epu32_mask(magnitude, all(0x7f800000u));
    const __m512i sign = _mm512_maskz_and_epi32(is_number, _mm512_srli_epi32(bits, 28), all(8u));
    const __m512 quotient = _mm512_div_ps(_mm512_castsi512_ps(magnitude), divisor);
    const __m512 value = _mm512_maskz_min_ps(0xffff, quotient, _mm512_set1_ps(6.0f));
    __m512i power;
    const __m512 steps = steps_of(_mm512_castps_si512(value), 0x3f800000u, 0x40800000u, 6291456.0f, &power);
    const __m512i snapped = _mm512_castps_si512(_mm512_add_ps(value, steps));
    const __m512i raised = _mm512_add_epi32(_mm512_and_si512(snapped, all(7u)), _mm512_srli_epi32(snapped, 22));
    const __m128i codes = _mm512_cvtepi32_epi8(_mm512_or_si512(_mm512_sub_epi32(raised, all(299u)), sign));
    const __m128i pairs = _mm_maddubs_epi16(codes, _mm_set1_epi16(16 << 8 | 1));
    return _mm_packus_epi16(pairs, pairs);
}

// Scales of at most sixteen blocks by their largest magnitudes: codes to `scales`, and what their elements are divided by.
inline __m512 nvfp4_scales(__m256i largest, int blocks, float encode_scale, uint8_t* scales) {
    const __m512 encode = _mm512_set1_ps(encode_scale);
    const __m512 share = _mm512_mul_ps(_mm512_div_ps(widened16(largest), _mm512_set1_ps(6.0f)), encode);
    const __m512i codes = e4m3_codes(_mm512_maskz_min_ps(0xffff, _mm512_set1_ps(448.0f), share));
    _mm_mask_storeu_epi8(scales, __mmask16((1u << blocks) - 1), _mm512_cvtepi32_epi8(codes));
    const __m512 decode = _mm512_div_ps(e4m3_values(codes), encode);
    const __mmask16 is_zero = _mm512_cmp_ps_mask(decode, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(decode, is_zero, _mm512_castsi512_ps(all(0x7f800000u)));
}

}  // namespace ocrquant::OCRQUANT_ISA::emit_wide

#endif
