// A function of one bf16 number as the 65536 results that it has: 128 KB, of which the numbers of one layer touch some 6 KB.
//
// A look-up takes a third of a nanosecond, an exponential and two roundings about a whole one, GELU 1.9 ns (Xeon family 6 model
// 207, 2026-11-30). Tables are filled by the kernels that they replace, 32 numbers at a time, so the bits are the same.
#pragma once

#include "common/rows.h"

namespace ocrquant::OCRQUANT_ISA {

struct Bf16Table {
    static constexpr int VALUES = 1 << 16;

    uint16_t of[VALUES + 1];  // the last one is read with the one before it, and not used

    // f: Turn to Turn, in float32; its result is rounded.
    template <class Function>
    explicit Bf16Table(Function f) {
        for (int i = 0; i < VALUES; ++i) of[i] = uint16_t(i);
        of[VALUES] = 0;
        map(of, VALUES, f, of);
    }
};

#if defined(OCRQUANT_WITH_AVX512)
// Entries at sixteen places, and the entries behind them in the upper halves. 8192 look-ups took 2.6 us one by one and take 2.0 (Xeon
// family 6 model 207, 2026-11-30).
inline __m512i looked_up(const uint16_t* table, __m512i places) {
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff, places, table, 2);
}
#endif

// y[i] = table[x[i]]; the two may be one.
inline void look_up(const uint16_t* table, const uint16_t* x, int64_t count, uint16_t* y) {
    int64_t i = 0;
#if defined(OCRQUANT_WITH_AVX512)
    for (; i + 16 <= count; i += 16) {
        const __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + i)));
        _mm256_storeu_si256((__m256i*)(y + i), _mm512_cvtepi32_epi16(looked_up(table, at)));
    }
#endif
    for (; i + 4 <= count; i += 4) {
        const uint16_t a = table[x[i]], b = table[x[i + 1]], c = table[x[i + 2]], d = table[x[i + 3]];
        y[i] = a, y[i + 1] = b, y[i + 2] = c, y[i + 3] = d;
    }
    for (; i < count; ++i) y[i] = table[x[i]];
}

}  // namespace ocrquant::OCRQUANT_ISA
