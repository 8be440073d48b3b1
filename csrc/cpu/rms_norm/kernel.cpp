// The residual sum, RMS norm by one of two rules of rounding, and the operand's forms.
#include "common/produce.h"
#include "rms_norm/args.h"

namespace ocrquant::OCRQUANT_ISA {

void rms_norm(const RmsNormArgs& a) {
    produce_rows(a.rows, a.width, a.out, [&](int64_t r, uint16_t* y) {
        uint16_t* const x = a.x + r * a.x_stride;
        if (a.delta) map(x, a.width, [](Turn v, Turn d) { return v + d; }, x, a.delta + r * a.delta_stride);
        const float scale = inverse_rms(x, a.width, a.eps);
        if (a.is_unit)
            map(y, a.width, [scale](Turn v, Turn w) { return v * scale * (1.0f + w); }, x, a.weight);
        else
            map(y, a.width, [scale](Turn v, Turn w) { return rounded(v * scale) * rounded(w); }, x, a.weight);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
