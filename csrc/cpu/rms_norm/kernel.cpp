// The residual sum, RMS norm by one of two rules of rounding, and the operand's forms.
#include "common/produce.h"
#include "rms_norm/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

#if defined(OCRQUANT_WITH_AVX512)

// x + delta, rounded and written, and its inverse root mean square; delta may be null.
float residual(uint16_t* x, const uint16_t* delta, int64_t width, float eps) {
    Wide32 lanes = all32(0.0f);
    for_lines(width, [&](int64_t i, int64_t n) {
        Wide32 v = columns(x + i, n);
        if (delta) {
            v = rounded(v + columns(delta + i, n));
            store_columns(x + i, v, n);
        }
        lanes = lanes + v * v;
    });
    return 1.0f / __builtin_sqrtf(sum32(lanes) / float(width) + eps);
}

void norm_row(const RmsNormArgs& a, uint16_t* x, const uint16_t* delta, uint16_t* y) {
    const Wide32 scale = all32(residual(x, delta, a.width, a.eps)), one = all32(1.0f);
    const auto write = [&](auto normed) {
        for_lines(a.width, [&](int64_t i, int64_t n) { store_columns(y + i, normed(columns(x + i, n), columns(a.weight + i, n)), n); });
    };
    if (a.is_unit)
        write([&](Wide32 v, Wide32 w) { return v * scale * (one + w); });
    else
        write([&](Wide32 v, Wide32 w) { return rounded(v * scale) * rounded(w); });
}

#else

void norm_row(const RmsNormArgs& a, uint16_t* x, const uint16_t* delta, uint16_t* y) {
    if (delta) map(x, a.width, [](Turn v, Turn d) { return v + d; }, x, delta);
    const float scale = inverse_rms(x, a.width, a.eps);
    if (a.is_unit)
        map(y, a.width, [scale](Turn v, Turn w) { return v * scale * (1.0f + w); }, x, a.weight);
    else
        map(y, a.width, [scale](Turn v, Turn w) { return rounded(v * scale) * rounded(w); }, x, a.weight);
}

#endif

}  // namespace

void rms_norm(const RmsNormArgs& a) {
    produce_rows(a.rows, a.width, a.out, [&](int64_t r, uint16_t* y) {
        norm_row(a, a.x + r * a.x_stride, a.delta ? a.delta + r * a.delta_stride : nullptr, y);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
