// Thirty-two float32 at a time: what one turn of a loop over a row computes on.
//
// Operations go through the four vectors side by side. An element's chain of dependent operations (an exponential is some
// eighty cycles long) would otherwise fill a core's window of pending instructions: SiLU took 1.7 times as long on vectors
// one after the other (Zen 1, 2 GHz).
#pragma once

#include "common/vec.h"

namespace ocrquant::OCRQUANT_ISA {

constexpr int VECTORS = 4;
constexpr int TURN = VECTORS * VEC;

struct Turn {
    F32 v[VECTORS];
};

template <class Function>
inline Turn each(Function f) {
    Turn result;
    for (int i = 0; i < VECTORS; ++i) result.v[i] = f(i);
    return result;
}

inline Turn turn_of(float value) {
    return each([value](int) { return splat(value); });
}

#define OCRQUANT_OPERATOR(op)                                                                                       \
    inline Turn operator op(const Turn& a, const Turn& b) {                                                         \
        return each([&](int i) { return a.v[i] op b.v[i]; });                                                       \
    }                                                                                                               \
    inline Turn operator op(const Turn& a, float b) {                                                               \
        return each([&](int i) { return a.v[i] op b; });                                                            \
    }                                                                                                               \
    inline Turn operator op(float a, const Turn& b) {                                                               \
        return each([&](int i) { return a op b.v[i]; });                                                            \
    }
OCRQUANT_OPERATOR(+)
OCRQUANT_OPERATOR(-)
OCRQUANT_OPERATOR(*)
OCRQUANT_OPERATOR(/)
#undef OCRQUANT_OPERATOR

inline Turn operator-(const Turn& a) {
    return each([&](int i) { return -a.v[i]; });
}

// Rounded to bf16 and back.
inline Turn rounded(const Turn& a) {
    return each([&](int i) { return rounded(a.v[i]); });
}

inline Turn magnitude(const Turn& a) {
    return each([&](int i) { return bit_cast<F32>(bit_cast<U32>(a.v[i]) & 0x7fffffffu); });
}

inline Turn within(const Turn& a, float low, float high) {
    return each([&](int i) { return within(a.v[i], low, high); });
}

inline Turn scaled(const Turn& a, const Turn& shifted) {
    return each([&](int i) { return scaled(a.v[i], shifted.v[i]); });
}

}  // namespace ocrquant::OCRQUANT_ISA
