// GELU in float32, rounded once, in the form with tanh or the one with erf: each is worked out once for all bf16 numbers, at
// the first call, and looked up from then on (128 KB a form, 0.2 ms to fill).
//
// Both forms add a number near -1 to 1 for negative x. It is found from a tail that is small there, so that rounding it to
// float32 gives what a correctly rounded tanh or erf gives nearly always, and with it torch's result.
#include "common/bf16_table.h"
#include "common/pool.h"
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

const uint16_t* table_of(bool is_tanh) {
    if (is_tanh) {
        static const Bf16Table table([](Turn x) { return gelu_tanh(x); });
        return table.of;
    }
    static const Bf16Table table([](Turn x) { return gelu_erf(x); });
    return table.of;
}

}  // namespace

void gelu(const GeluArgs& a) {
    // A chunk takes a few microseconds, waking a thread a few dozen.
    constexpr int64_t CHUNK = 1 << 14, SERIAL = 1 << 17;
    const uint16_t* const table = table_of(a.is_tanh);
    const int64_t step = a.width < CHUNK ? CHUNK / (a.width > 0 ? a.width : 1) : 1;
    parallel_for((a.rows + step - 1) / step, a.rows * a.width < SERIAL, [&](int64_t chunk) {
        const int64_t last = (chunk + 1) * step < a.rows ? (chunk + 1) * step : a.rows;
        for (int64_t r = chunk * step; r < last; ++r) look_up(table, a.x + r * a.x_stride, a.width, a.out + r * a.out_stride);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
