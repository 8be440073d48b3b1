// Sixteen floats: one AVX-512 register, two of AVX2, four of SSE or NEON. Include after common/isa.h.
//
// Every operation works lane by lane, and the two that reduce have a fixed tree, so results do not depend on how a kernel is
// cut into tiles. Only `fma` differs between instruction sets: it rounds twice where there is no fused one.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/numbers.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/bf16_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA::wide {

constexpr int64_t LANES = 16;

#if defined(OCRQUANT_WITH_AVX512)

struct Lanes {
    __m512 v;
};

inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, Lanes x) { _mm512_storeu_ps(to, x.v); }
inline Lanes all(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The larger or smaller one; `b` where either is NaN. Masked forms, since GCC 12 warns of its own headers for the others.
inline Lanes larger(Lanes a, Lanes b) { return {_mm512_maskz_max_ps(0xffff, a.v, b.v)}; }
inline Lanes smaller(Lanes a, Lanes b) { return {_mm512_maskz_min_ps(0xffff, a.v, b.v)}; }
// y times two to the integer that the low bits of `shifted` hold; zero in lanes where x < least.
inline Lanes raised(Lanes y, Lanes shifted, Lanes x, float least) {
    const __m512i power = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(shifted.v), 23);
    const __mmask16 kept = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_NLT_UQ);
    return {_mm512_castsi512_ps(_mm512_maskz_add_epi32(kept, _mm512_castps_si512(y.v), power))};
}

#elif defined(OCRQUANT_WITH_AVX2)

struct Lanes {
    __m256 a, b;
};

inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Lanes x) {
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
}
inline Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes add(Lanes x, Lanes y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Lanes sub(Lanes x, Lanes y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Lanes mul(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Lanes fma(Lanes x, Lanes y, Lanes z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// The larger or smaller one; `y` where either is NaN.
inline Lanes larger(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Lanes smaller(Lanes x, Lanes y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

inline __m256 raised(__m256 y, __m256 shifted, __m256 x, __m256 least) {
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    const __m256 value = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
    return _mm256_and_ps(value, _mm256_cmp_ps(x, least, _CMP_NLT_UQ));
}
// y times two to the integer that the low bits of `shifted` hold; zero in lanes where x < least.
inline Lanes raised(Lanes y, Lanes shifted, Lanes x, float least) {
    const __m256 bound = _mm256_set1_ps(least);
    return {raised(y.a, shifted.a, x.a, bound), raised(y.b, shifted.b, x.b, bound)};
}

#else

typedef float Quarter __attribute__((vector_size(16)));
typedef uint32_t QuarterBits __attribute__((vector_size(16)));

struct Lanes {
    Quarter v[4];
};

template <class Function>
inline Lanes each(Function f) {
    return {{f(0), f(1), f(2), f(3)}};
}

inline Lanes load(const float* from) {
    Lanes x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}
inline void store(float* to, const Lanes& x) { std::memcpy(to, &x, sizeof(x)); }
inline Lanes all(float x) {
    return each([&](int) { return Quarter{} + x; });
}
inline Lanes add(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Lanes sub(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Lanes mul(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// The larger or smaller one; `b` where either is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes smaller(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// y times two to the integer that the low bits of `shifted` hold; zero in lanes where x < least.
inline Lanes raised(const Lanes& y, const Lanes& shifted, const Lanes& x, float least) {
    return each([&](int i) {
        const QuarterBits value = (QuarterBits)y.v[i] + ((QuarterBits)shifted.v[i] << 23);
        const QuarterBits below = (QuarterBits)(x.v[i] < least);
        return (Quarter)(value & ~below);
    });
}

#endif

// 2^x for x <= 0, to within 2e-7; NaN for NaN. Below 2^-100 it is 0: a sum that holds 1 cannot tell, and products stay clear of
// subnormal numbers, with which some processors are slow. Cephes' polynomial on [-1/2, 1/2]. Adding 1.5 * 2^23 rounds to an
// integer and leaves it in the low bits; a NaN that comes from bf16, from E4M3 or from arithmetic has no low bits, so that the
// shift leaves it a NaN.
inline Lanes exp2(Lanes x) {
    constexpr float LEAST = -100.f, ROUND = 12582912.f;
#if defined(OCRQUANT_WITH_AVX512)
    const Lanes bounded = x;  // what goes wrong below is not kept
#else
    const Lanes bounded = larger(all(LEAST), x);
#endif
    const Lanes shifted = add(bounded, all(ROUND));
    const Lanes f = sub(bounded, sub(shifted, all(ROUND)));
    Lanes y = all(1.535336188319500e-4f);
    y = fma(y, f, all(1.339887440266574e-3f));
    y = fma(y, f, all(9.618437357674640e-3f));
    y = fma(y, f, all(5.550332471162809e-2f));
    y = fma(y, f, all(2.402264791363012e-1f));
    y = fma(y, f, all(6.931472028550421e-1f));
    y = fma(y, f, all(1.f));
    return raised(y, shifted, x, LEAST);
}

// Halves, their halves, and so on. By way of memory each step waits for the one before it to be stored.
#if defined(OCRQUANT_WITH_AVX512)
inline float sum(Lanes x) { return sum16(x.v); }
#else
inline float sum(Lanes x) {
    float parts[LANES];
    store(parts, x);
    for (int64_t width = LANES / 2; width > 0; width /= 2) {
        for (int64_t i = 0; i < width; ++i) parts[i] += parts[i + width];
    }
    return parts[0];
}
#endif

// The largest lane; a NaN may or may not be passed over.
inline float largest(Lanes x) {
    float parts[LANES];
    store(parts, x);
    for (int64_t width = LANES / 2; width > 0; width /= 2) {
        for (int64_t i = 0; i < width; ++i) parts[i] = parts[i] > parts[i + width] ? parts[i] : parts[i + width];
    }
    return parts[0];
}

}  // namespace ocrquant::OCRQUANT_ISA::wide
