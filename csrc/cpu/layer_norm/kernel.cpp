// (x - mean) / sqrt(var + eps) * weight + bias in float32, rounded once; the variance is that of the centred row.
#include "common/produce.h"
#include "layer_norm/args.h"

namespace ocrquant::OCRQUANT_ISA {

void layer_norm(const LayerNormArgs& a) {
    for_rows(a.rows, a.width, [&](int64_t r) {
        const uint16_t* const x = a.x + r * a.x_stride;
        const float mean = sum(a.width, [](Turn v) { return v; }, x) / float(a.width);
        const float squares = sum(a.width, [mean](Turn v) { return (v - mean) * (v - mean); }, x);
        const float scale = 1.0f / __builtin_sqrtf(squares / float(a.width) + a.eps);
        const auto normed = [mean, scale](Turn v, Turn w, Turn b) { return (v - mean) * scale * w + b; };
        map(a.out + r * a.out_stride, a.width, normed, x, a.weight, a.bias);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
