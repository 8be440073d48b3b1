// Loops over one row of bf16: element-wise maps and sums, thirty-two elements a turn.
#pragma once

#include "common/numbers.h"
#include "common/turn.h"

namespace ocrquant::OCRQUANT_ISA {

inline F32 load_wide(const uint16_t* p) { return widen(load_as<U16>(p)); }
inline F32 load_wide(const float* p) { return load_as<F32>(p); }

template <class Element>
inline Turn load_turn(const Element* from) {
    return each([from](int i) { return load_wide(from + i * VEC); });
}

// The last elements of a row, followed by zeros.
template <class Element>
struct Padded {
    Element values[TURN] = {};
    Padded(const Element* from, int64_t count) { std::memcpy(values, from, size_t(count) * sizeof(Element)); }
};

inline void store_turn(const Turn& turn, uint16_t* to) {
    for (int i = 0; i < VECTORS; i += 2) {
        const U16x16 result = narrow(turn.v[i], turn.v[i + 1]);
        std::memcpy(to + i * VEC, &result, sizeof(result));
    }
}

inline void store_turn(const Turn& turn, float* to) { std::memcpy(to, turn.v, sizeof(turn.v)); }

// y[i] = f(a[i], b[i], ...), rounded where y is bf16; inputs are bf16 or float32. y may be one of the inputs.
template <class Out, class Function, class... In>
inline void map(Out* y, int64_t count, Function f, const In*... in) {
    int64_t i = 0;
    for (; i + TURN <= count; i += TURN) store_turn(f(load_turn(in + i)...), y + i);
    if (i == count) return;
    Out tail[TURN];
    store_turn(f(load_turn(Padded<In>(in + i, count - i).values)...), tail);
    std::memcpy(y + i, tail, size_t(count - i) * sizeof(Out));
}

// Sum of f(a[i], b[i], ...), element i in lane i % 32; then halves are added. The order depends on count alone.
template <class Function, class... In>
inline float sum(int64_t count, Function f, const In*... in) {
    Turn lanes = turn_of(0.0f);
    int64_t i = 0;
    for (; i + TURN <= count; i += TURN) lanes = lanes + f(load_turn(in + i)...);
    if (i < count) {
        // f(0, ...) may be anything: what lies beyond the row does not count.
        Turn part = f(load_turn(Padded<In>(in + i, count - i).values)...);
        std::memset(reinterpret_cast<float*>(&part) + (count - i), 0, size_t(TURN - (count - i)) * sizeof(float));
        lanes = lanes + part;
    }
    const F32 all = (lanes.v[0] + lanes.v[2]) + (lanes.v[1] + lanes.v[3]);
    return ((all[0] + all[4]) + (all[2] + all[6])) + ((all[1] + all[5]) + (all[3] + all[7]));
}

// 1 / sqrt(mean x^2 + eps), both operations correctly rounded.
template <class Element>
inline float inverse_rms(const Element* x, int64_t count, float eps) {
    const float squares = sum(count, [](Turn v) { return v * v; }, x);
    return 1.0f / __builtin_sqrtf(squares / float(count) + eps);
}

}  // namespace ocrquant::OCRQUANT_ISA
