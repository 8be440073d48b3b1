// One register of floats of the instruction set, with fused multiply-add where there is one. Include after isa.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(OCRQUANT_WITH_AVX512)
#include "common/bf16_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA::delta {

#if defined(OCRQUANT_WITH_AVX512)
typedef float Lanes __attribute__((vector_size(64)));
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline Lanes all(float x) { return (Lanes)_mm512_set1_ps(x); }
#elif defined(OCRQUANT_WITH_AVX2)
typedef float Lanes __attribute__((vector_size(32)));
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline Lanes all(float x) { return (Lanes)_mm256_set1_ps(x); }
#else
typedef float Lanes __attribute__((vector_size(16)));
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return a * b + c; }
inline Lanes all(float x) { return Lanes{x, x, x, x}; }
#endif

constexpr int64_t LANES = sizeof(Lanes) / sizeof(float);

inline Lanes load(const float* from) {
    Lanes x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

inline void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof(x)); }

// x in a register: GCC would load it again for each product that takes it, and loads are what such a loop waits for.
inline Lanes held(Lanes x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#endif
    return x;
}

// Halves, their halves, and so on. By way of memory each step waits for the one before it to be stored.
inline float total(Lanes x) {
#if defined(OCRQUANT_WITH_AVX512)
    return sum16((__m512)x);
#else
    float parts[LANES];
    store(parts, x);
    for (int64_t width = LANES / 2; width > 0; width /= 2) {
        for (int64_t i = 0; i < width; ++i) parts[i] += parts[i + width];
    }
    return parts[0];
#endif
}

// to[j] += total(x[j])
inline void add_totals(const Lanes (&x)[4], float* to) {
#if defined(OCRQUANT_WITH_AVX512) || defined(OCRQUANT_WITH_AVX2)
    __m256 half[4];
    for (int j = 0; j < 4; ++j) {
#if defined(OCRQUANT_WITH_AVX512)
        half[j] = _mm256_add_ps(_mm512_castps512_ps256((__m512)x[j]), _mm512_extractf32x8_ps((__m512)x[j], 1));
#else
        half[j] = (__m256)x[j];
#endif
    }
    const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), four));
#else
    for (int j = 0; j < 4; ++j) to[j] += total(x[j]);
#endif
}

inline float dot(const float* a, const float* b, int64_t count) {
    Lanes sum = all(0.f);
    for (int64_t i = 0; i < count; i += LANES) sum = fma(load(a + i), load(b + i), sum);
    return total(sum);
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
