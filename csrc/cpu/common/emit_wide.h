// FP8 and NVFP4 codes of emit.h, sixteen elements in one register of AVX-512: the same results, so the same bits.
//
// A quotient of a bf16 number is its product with the reciprocal, corrected once by what the product leaves of the dividend. That is
// the correctly rounded quotient for every significand of both, all 2^30 pairs of which were tried; powers of two scale it as long as
// nothing becomes subnormal or infinite, for which there are bounds.
//
// 16 rows of 192 numbers, one core of a Xeon (family 6 model 207) whose other thread was busy, 2026-11-30: NVFP4 took 1.9 us and takes
// 0.8, FP8 1.4 and 0.7. Half of it was waiting for the scale of one's own block, so that many blocks' scales come first.
#pragma once

#include <cstdint>

#include "common/isa.h"

#if defined(OCRQUANT_WITH_AVX512)

#include "common/bf16_lines.h"

namespace ocrquant::OCRQUANT_ISA::emit_wide {

constexpr int64_t BLOCK = 16;      // elements that share an NVFP4 scale
constexpr int64_t GROUP = 16;      // blocks whose scales are computed together
constexpr int64_t BATCH = 4 * GROUP;  // blocks whose scales are all there before the first element is divided

// Divisors between these bounds leave room for every quotient that does not round to zero or to the largest code, and for what is
// left of its dividend.
constexpr float LEAST_DIVISOR = 0x1p-80f, MOST_DIVISOR = 0x1p100f;

inline bool is_usual(float divisor) { return divisor >= LEAST_DIVISOR && divisor <= MOST_DIVISOR; }

inline __m512i all(uint32_t x) { return _mm512_set1_epi32(int(x)); }
inline __m512 as_float(__m512i bits) { return _mm512_castsi512_ps(bits); }
inline __m512i as_bits(__m512 x) { return _mm512_castps_si512(x); }

// The bits of `a` where those of a mask are set, else those of `b`.
template <uint32_t MASK>
inline __m512i chosen(__m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(all(MASK), a, b, 0xca);
}

struct Divisor {
    __m512 value, reciprocal;

    __m512 quotient(__m512 x) const {
        const __m512 near = _mm512_mul_ps(x, reciprocal);
        return _mm512_fmadd_ps(_mm512_fnmadd_ps(near, value, x), reciprocal, near);
    }
};

// A grid of numbers whose codes go up with them. What is added to a number of a binade leaves its rounded code in the low bits of
// the sum: 1.5 * 2^23 steps round, and a few more make up for the codes of the binades below. `least` is the first power of two, below
// which the steps stay the same; MANTISSA its bits.
template <int LEAST, int MOST, int MANTISSA>
struct Grid {
    static constexpr float power(int exponent) { return exponent < 0 ? power(exponent + 1) / 2 : exponent > 0 ? power(exponent - 1) * 2 : 1.0f; }

    struct Table {
        alignas(64) float added[16];  // by the low four bits of the exponent

        constexpr Table() : added{} {
            for (int e = LEAST; e <= MOST; ++e)
                added[(e + 127) & 15] = power(e - MANTISSA) * float(0xc00000 + ((e - LEAST) << MANTISSA));
        }
    };
    static constexpr Table TABLE{};

    __m512 added = _mm512_load_ps(TABLE.added);

    // Codes in the low bits, and something above, of numbers from zero to what rounds to the largest one.
    __m512i codes(__m512 x) const {
        const __m512i bits = _mm512_maskz_max_epi32(0xffff, as_bits(x), all(uint32_t(LEAST + 127) << 23));
        return as_bits(_mm512_add_ps(x, _mm512_maskz_permutexvar_ps(0xffff, _mm512_srli_epi32(bits, 23), added)));
    }
};

using E4m3 = Grid<-6, 8, 3>;
using E2m1 = Grid<0, 2, 1>;

// Magnitudes of 32 bf16 numbers, those in even places and in odd ones.
struct Pairs {
    __m512 even, odd;

    explicit Pairs(__m512i numbers) {
        const __m512i magnitudes = _mm512_and_si512(numbers, all(0x7fff7fffu));
        even = as_float(_mm512_slli_epi32(magnitudes, 16));
        odd = as_float(_mm512_and_si512(magnitudes, all(0xffff0000u)));
    }
};

// E4M3 codes of 32 numbers that are not NaN; `quotient` divides magnitudes and gives what rounds to at most 448.
template <class Quotient>
inline __m256i fp8_codes(__m512i numbers, Quotient quotient, const E4m3& grid) {
    const Pairs pairs(numbers);
    const __m512i even = grid.codes(quotient(pairs.even)), odd = grid.codes(quotient(pairs.odd));
    const __m512i codes = chosen<0x7fu>(even, _mm512_slli_epi32(odd, 8));
    const __m512i half_signed = chosen<0x80u>(_mm512_srli_epi32(numbers, 8), codes);
    return _mm512_cvtepi32_epi16(chosen<0x8000u>(_mm512_srli_epi32(numbers, 16), half_signed));
}

// For a usual scale.
inline void fp8(const uint16_t* y, int64_t width, float decode_scale, uint8_t* codes) {
    const Divisor scale{_mm512_set1_ps(decode_scale), _mm512_set1_ps(1.0f / decode_scale)};
    const E4m3 grid;
    const auto quotient = [&](__m512 x) { return scale.quotient(x); };
    int64_t i = 0;
    for (; i + LINE_NUMBERS <= width; i += LINE_NUMBERS)
        _mm256_storeu_si256((__m256i*)(codes + i), fp8_codes(_mm512_loadu_si512(y + i), quotient, grid));
    if (i == width) return;
    const __mmask32 rest = __mmask32((1ull << (width - i)) - 1);
    _mm256_mask_storeu_epi8(codes + i, rest, fp8_codes(_mm512_maskz_loadu_epi16(rest, y + i), quotient, grid));
}

// Codes of numbers over a scale that was chosen before them: what is beyond the largest code gets it. `width` is a multiple of 32. False,
// with nothing of use written, for an unusual scale and where there is a NaN.
inline bool saturated_fp8(const uint16_t* x, int64_t width, float decode_scale, uint8_t* codes) {
    if (!is_usual(decode_scale)) return false;
    const Divisor scale{_mm512_set1_ps(decode_scale), _mm512_set1_ps(1.0f / decode_scale)};
    const E4m3 grid;
    const __m512 most = _mm512_set1_ps(448.0f);
    __mmask32 nan = 0;
    for (int64_t i = 0; i < width; i += LINE_NUMBERS) {
        const __m512i numbers = _mm512_loadu_si512(x + i);
        nan |= _mm512_cmpgt_epu16_mask(_mm512_and_si512(numbers, all(0x7fff7fffu)), all(0x7f807f80u));
        const auto quotient = [&](__m512 y) { return _mm512_maskz_min_ps(0xffff, scale.quotient(y), most); };
        _mm256_storeu_si256((__m256i*)(codes + i), fp8_codes(numbers, quotient, grid));
    }
    return nan == 0;
}

// Two blocks; or the first one alone, and zeros.
inline __m512i two_blocks(const uint16_t* y, int64_t blocks) {
    return blocks > 1 ? _mm512_loadu_si512(y) : _mm512_maskz_loadu_epi16(blocks == 1 ? 0xffffu : 0u, y);
}

inline __m512i larger(__m512i a, __m512i b) { return _mm512_max_epu16(a, b); }

// Largest magnitudes of at most sixteen blocks as fp32, zeros behind; NaN comes out above infinity.
inline __m512 largest_magnitudes(const uint16_t* y, int64_t blocks) {
    __m512i of_4[4], of_8[2];  // so many blocks a register, with eight and four numbers left of each
    for (int i = 0; i < 4; ++i) {
        const __m512i a = two_blocks(y + 4 * i * BLOCK, blocks - 4 * i), b = two_blocks(y + (4 * i + 2) * BLOCK, blocks - 4 * i - 2);
        const __m512i magnitudes = all(0x7fff7fffu), first = _mm512_and_si512(a, magnitudes), second = _mm512_and_si512(b, magnitudes);
        of_4[i] = larger(_mm512_shuffle_i64x2(first, second, 0x88), _mm512_shuffle_i64x2(first, second, 0xdd));
    }
    for (int i = 0; i < 2; ++i)
        of_8[i] = larger(_mm512_unpacklo_epi64(of_4[2 * i], of_4[2 * i + 1]), _mm512_unpackhi_epi64(of_4[2 * i], of_4[2 * i + 1]));
    const __m512 low = as_float(of_8[0]), high = as_float(of_8[1]);
    const __m512i pairs = larger(as_bits(_mm512_shuffle_ps(low, high, 0x88)), as_bits(_mm512_shuffle_ps(low, high, 0xdd)));
    const __m512i largest = larger(pairs, _mm512_slli_epi32(pairs, 16));
    // A lane of 128 bits has blocks that lie four apart.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return as_float(_mm512_and_si512(_mm512_maskz_permutexvar_epi32(0xffff, order, largest), all(0xffff0000u)));
}

struct Scales {
    __m512 decode, reciprocal;
    bool are_usual;  // whether none is NaN or beyond the bounds
};

// Scales of at most sixteen blocks by their largest magnitudes: codes to `scales`, and what they are worth; zero where all elements
// become zero, the reciprocal as well.
inline Scales nvfp4_scales(__m512 largest, int64_t blocks, float encode_scale, uint8_t* scales) {
    const __m512 encode = _mm512_set1_ps(encode_scale);
    const Divisor six{_mm512_set1_ps(6.0f), _mm512_set1_ps(1.0f / 6.0f)};
    const __m512 share = _mm512_mul_ps(six.quotient(largest), encode);
    const __m512i codes = _mm512_and_si512(E4m3().codes(_mm512_maskz_min_ps(0xffff, share, _mm512_set1_ps(448.0f))), all(0x7fu));
    const __m512 worth = _mm512_mul_ps(as_float(_mm512_slli_epi32(codes, 20)), _mm512_set1_ps(0x1p120f));
    const __m512 decode = _mm512_div_ps(worth, encode);
    const __mmask16 counts = _mm512_cmp_ps_mask(decode, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __mmask16 usual = _mm512_cmp_ps_mask(decode, _mm512_set1_ps(LEAST_DIVISOR), _CMP_GE_OQ) &
                            _mm512_cmp_ps_mask(decode, _mm512_set1_ps(MOST_DIVISOR), _CMP_LE_OQ);
    const __mmask16 finite = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p120f), _CMP_LE_OQ);
    const bool are_usual = ((counts & ~usual) | __mmask16(~finite)) == 0;
    if (are_usual) _mm_mask_storeu_epi8(scales, __mmask16((1u << blocks) - 1), _mm512_cvtepi32_epi8(codes));
    return {decode, _mm512_maskz_div_ps(counts, _mm512_set1_ps(1.0f), decode), are_usual};
}

// Sixteen bytes: codes of two blocks without NaN.
inline __m128i nvfp4_codes(__m512i numbers, const Divisor& scales, const E2m1& grid) {
    const Pairs pairs(numbers);
    const __m512 most = _mm512_set1_ps(6.0f);
    const __m512i even = grid.codes(_mm512_maskz_min_ps(0xffff, scales.quotient(pairs.even), most));
    const __m512i odd = grid.codes(_mm512_maskz_min_ps(0xffff, scales.quotient(pairs.odd), most));
    const __m512i codes = chosen<0x7u>(even, _mm512_slli_epi32(odd, 4));
    const __m512i half_signed = chosen<0x8u>(_mm512_srli_epi32(numbers, 12), codes);
    return _mm512_cvtepi32_epi8(chosen<0x80u>(_mm512_srli_epi32(numbers, 24), half_signed));
}

// At most BATCH blocks. False, with nothing of use written, where a scale is beyond the bounds or an element is not finite.
inline bool nvfp4_batch(const uint16_t* y, int64_t blocks, float encode_scale, uint8_t* packed_codes, uint8_t* scales) {
    if (!is_usual(encode_scale)) return false;
    alignas(64) float decode[BATCH], reciprocal[BATCH];
    for (int64_t b = 0; b < blocks; b += GROUP) {
        const int64_t count = blocks - b < GROUP ? blocks - b : GROUP;
        const Scales group = nvfp4_scales(largest_magnitudes(y + b * BLOCK, count), count, encode_scale, scales + b);
        if (__builtin_expect(!group.are_usual, 0)) return false;
        _mm512_store_ps(decode + b, group.decode);
        _mm512_store_ps(reciprocal + b, group.reciprocal);
    }
    const E2m1 grid;
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const auto spread = [halves](const float* two) {
        const __m128 pair = _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(two)));
        return _mm512_maskz_permutexvar_ps(0xffff, halves, _mm512_castps128_ps512(pair));
    };
    for (int64_t b = 0; b < blocks; b += 2) {
        const Divisor divisors{spread(decode + b), spread(reciprocal + b)};
        const __m128i codes = nvfp4_codes(two_blocks(y + b * BLOCK, blocks - b), divisors, grid);
        if (b + 1 < blocks)
            _mm_storeu_si128((__m128i*)(packed_codes + b * BLOCK / 2), codes);
        else
            _mm_storel_epi64((__m128i*)(packed_codes + b * BLOCK / 2), codes);
    }
    return true;
}

}  // namespace ocrquant::OCRQUANT_ISA::emit_wide

#endif
