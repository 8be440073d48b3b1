// SiLU of a bf16 value, rounded to bf16, for all 65536 of them: bits of the value to bits of the result.
//
// Built at the first call from `silu` of vec.h, whose bits it has. A look-up takes a third of a nanosecond, the exponential and
// the two roundings about a whole one (Xeon family 6 model 207, 2026-11-30); activations of one layer touch some 6 KB of it.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace ocrquant::OCRQUANT_ISA {

const uint16_t* silu_table();

// y[i] = round(silu(x[i])); the two may be one.
inline void silu_row(const uint16_t* x, int64_t count, uint16_t* y) {
    const uint16_t* const table = silu_table();
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const uint16_t a = table[x[i]], b = table[x[i + 1]], c = table[x[i + 2]], d = table[x[i + 3]];
        y[i] = a, y[i + 1] = b, y[i + 2] = c, y[i + 3] = d;
    }
    for (; i < count; ++i) y[i] = table[x[i]];
}

}  // namespace ocrquant::OCRQUANT_ISA
