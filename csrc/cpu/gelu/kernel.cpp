// GELU in float32, rounded once, in the form with tanh or the one with erf.
// 
// Both forms add a number near -1 to 1 for negative x. It is found from a tail that is small there, so that rounding it to
// float32 gives what a correctly rounded tanh or erf gives nearly always, and with it torch's result.
#include "common/produce.h"
#include "gelu/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

// x / 2 * (1 + s), s = 1 - tail for positive x and tail - 1 for negative x, rounded before 1 is added.
inline Turn halved(const Turn& x, const Turn& tail) {
    const Turn s = 1.0f - tail;
    const Turn sum = each([&](int i) {
        const I32 is_negative = x.v[i] < 0.0f;
        return 1.0f + (is_negative ? -s.v[i] : s.v[i]);
    });
    return 0.5f * x * sum;
}

inline Turn gelu_tanh(const Turn& x) {
    const Turn u = 0.79788456f * (x + 0.044715f * (x * x * x));
    return halved(x, 2.0f / (1.0f + exponential(2.0f * magnitude(u))));
}

// erfc by a polynomial in 1 / (1 + z / 2) within an exponential: Numerical Recipes, section 6.2, relative error 1.2e-7.
inline Turn gelu_erf(const Turn& x) {
    const Turn z = magnitude(x) * 0.70710678f;
    const Turn t = 1.0f / (1.0f + 0.5f * z);
    Turn p = 0.17087277f * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return halved(x, t * exponential(p - z * z));
}

}  // namespace

void gelu(const GeluArgs& a) {
    for_rows(a.rows, a.width, [&](int64_t r) {
        const uint16_t* const x = a.x + r * a.x_stride;
        uint16_t* const y = a.out + r * a.out_stride;
        if (a.is_tanh)
            map(y, a.width, [](Turn v) { return gelu_tanh(v); }, x);
        else
            map(y, a.width, [](Turn v) { return gelu_erf(v); }, x);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
