// Loops over one row of bf16: element-wise maps and sums, sixteen elements a turn.
#pragma once

#include "common/vec.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int TURN = 2 * VEC;

inline float float_of_bf16(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

inline F32 load_wide(const uint16_t* p) { return widen(load_as<U16>(p)); }
inline F32 load_wide(const float* p) { return load_as<F32>(p); }

template <class Element>
struct Padded {
    Element values[TURN] = {};
    Padded(const Element* from, int64_t count) { std::memcpy(values, from, size_t(count) * sizeof(Element)); }
};

// y[i] = f(a[i], b[i], ...), rounded to bf16; inputs are bf16 or float32, f takes and returns eight float32. y may be one
// of the inputs.
template <class Function, class... In>
inline void map(uint16_t* y, int64_t count, Function f, const In*... in) {
    int64_t i = 0;
    for (; i + TURN <= count; i += TURN) {
        const U16x16 result = narrow(f(load_wide(in + i)...), f(load_wide(in + i + VEC)...));
        std::memcpy(y + i, &result, sizeof(result));
    }
    if (i == count) return;
    const auto turn = [&](const Padded<In>&... tail) {
        return narrow(f(load_wide(tail.values)...), f(load_wide(tail.values + VEC)...));
    };
    const U16x16 result = turn(Padded<In>(in + i, count - i)...);
    std::memcpy(y + i, &result, size_t(count - i) * sizeof(uint16_t));
}

// Sum of f(x[i]), element i in lane i % 32; then halves are added. The order depends on count alone.
template <class Function>
inline float sum(const uint16_t* x, int64_t count, Function f) {
    F32 lanes[4] = {};
    int64_t i = 0;
    for (; i + 4 * VEC <= count; i += 4 * VEC)
        for (int j = 0; j < 4; ++j) lanes[j] += f(load_wide(x + i + j * VEC));
    for (int j = 0; i < count; i += VEC, ++j) {
        if (i + VEC <= count) {
            lanes[j] += f(load_wide(x + i));
            continue;
        }
        uint16_t padded[VEC] = {};
        std::memcpy(padded, x + i, size_t(count - i) * sizeof(uint16_t));
        const F32 part = f(load_wide(padded));
        for (int k = 0; k < count - i; ++k) lanes[j][k] += part[k];
    }
    const F32 all = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    return ((all[0] + all[4]) + (all[2] + all[6])) + ((all[1] + all[5]) + (all[3] + all[7]));
}

// 1 / sqrt(mean x^2 + eps), both operations correctly rounded.
inline float inverse_rms(const uint16_t* x, int64_t count, float eps) {
    const float squares = sum(x, count, [](F32 v) { return v * v; });
    return 1.0f / __builtin_sqrtf(squares / float(count) + eps);
}

}  // namespace ocrquant::OCRQUANT_ISA
