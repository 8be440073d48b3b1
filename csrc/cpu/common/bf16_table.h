// A function of one bf16 number as the 65536 results that it has: 128 KB, of which the numbers of one layer touch some 6 KB.
//
// A look-up takes a third of a nanosecond, an exponential and two roundings about a whole one, GELU 1.9 ns (Xeon family 6 model
// 207, 2026-11-30). Tables are filled by the kernels that they replace, 32 numbers at a time, so the bits are the same.
#pragma once

#include "common/rows.h"

namespace ocrquant::OCRQUANT_ISA {

struct Bf16Table {
    static constexpr int VALUES = 1 << 16;

    uint16_t of[VALUES];

    // f: Turn to Turn, in float32; its result is rounded.
    template <class Function>
    explicit Bf16Table(Function f) {
        for (int i = 0; i < VALUES; ++i) of[i] = uint16_t(i);
        map(of, VALUES, f, of);
    }
};

// y[i] = table[x[i]]; the two may be one.
inline void look_up(const uint16_t* table, const uint16_t* x, int64_t count, uint16_t* y) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const uint16_t a = table[x[i]], b = table[x[i + 1]], c = table[x[i + 2]], d = table[x[i + 3]];
        y[i] = a, y[i + 1] = b, y[i + 2] = c, y[i + 3] = d;
    }
    for (; i < count; ++i) y[i] = table[x[i]];
}

}  // namespace ocrquant::OCRQUANT_ISA
