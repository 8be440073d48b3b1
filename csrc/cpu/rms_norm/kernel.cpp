// The residual sum, RMS norm by one of two rules of rounding, and the operand's forms.
#include "common/produce.h"
#include "rms_norm/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

#if defined(OCRQUANT_WITH_AVX512)

// x + delta, rounded and written; delta may be null. Returns what the norm multiplies by.
float residual(const RmsNormArgs& a, uint16_t* x, const uint16_t* delta) {
    Wide32 lanes = all32(0.0f);
    for_lines(a.width, [&](int64_t i, int64_t n) {
        Wide32 v = columns(x + i, n);
        if (delta) {
            v = rounded(v + columns(delta + i, n));
            store_columns(x + i, v, n);
        }
        lanes = lanes + v * v;
    });
    return 1.0f / __builtin_sqrtf(sum32(lanes) / float(a.width) + a.eps);
}

void normed(const RmsNormArgs& a, const uint16_t* x, float scale, uint16_t* y) {
    const auto write = [&](auto rule) {
        for_lines(a.width, [&](int64_t i, int64_t n) { store_columns(y + i, rule(columns(x + i, n), columns(a.weight + i, n)), n); });
    };
    if (a.is_unit)
        write([scale](Wide32 v, Wide32 w) { return v * scale * (1.0f + w); });
    else
        write([scale](Wide32 v, Wide32 w) { return rounded(v * scale) * rounded(w); });
}

#else

float residual(const RmsNormArgs& a, uint16_t* x, const uint16_t* delta) {
    if (delta) map(x, a.width, [](Turn v, Turn d) { return v + d; }, x, delta);
    return inverse_rms(x, a.width, a.eps);
}

void normed(const RmsNormArgs& a, const uint16_t* x, float scale, uint16_t* y) {
    if (a.is_unit)
        map(y, a.width, [scale](Turn v, Turn w) { return v * scale * (1.0f + w); }, x, a.weight);
    else
        map(y, a.width, [scale](Turn v, Turn w) { return rounded(v * scale) * rounded(w); }, x, a.weight);
}

#endif

}  // namespace

void rms_norm(const RmsNormArgs& a) {
    produce_some_rows(a.rows, a.width, a.out, [&](int64_t first, int64_t last, uint16_t* y) {
        // All scales first, lest each row wait for its own.
        float* const scales = static_cast<float*>(scratch(2, (last - first) * int64_t(sizeof(float))));
        for (int64_t r = first; r < last; ++r)
            scales[r - first] = residual(a, a.x + r * a.x_stride, a.delta ? a.delta + r * a.delta_stride : nullptr);
        for (int64_t r = first; r < last; ++r) normed(a, a.x + r * a.x_stride, scales[r - first], y + (r - first) * a.width);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
