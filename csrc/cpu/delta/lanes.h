// One register of floats of the instruction set, with fused multiply-add where there is one. Include after isa.h.
#pragma once

#include <cstdint>
#include <cstring>

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

inline float total(Lanes x) {
    float parts[LANES];
    store(parts, x);
    for (int64_t width = LANES / 2; width > 0; width /= 2) {
        for (int64_t i = 0; i < width; ++i) parts[i] += parts[i + width];
    }
    return parts[0];
}

inline float dot(const float* a, const float* b, int64_t count) {
    Lanes sum = all(0.f);
    for (int64_t i = 0; i < count; i += LANES) sum = fma(load(a + i), load(b + i), sum);
    return total(sum);
}

}  // namespace ocrquant::OCRQUANT_ISA::delta
