// Norms between the matrix products of a Gated DeltaNet decoder, for training: one pass over memory each, fp32 within.
#include "decoder_elementwise/args.h"
#include "decoder_elementwise/shares.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

constexpr int64_t ROWS = 16;  // of one share at least

}  // namespace

void unit_norm_backward(const UnitNormBackwardArgs& a) {
    const int64_t width = a.width;
    sum_of_shares(a.rows, ROWS, width, a.rows * width < SERIAL_ELEMENTS, a.d_weight, [&](int64_t first, int64_t last, float* share) {
        for (int64_t r = first; r < last; ++r) {
            const uint16_t *dy = a.d_y + r * width, *x = a.x + r * width;
            const float s = inverse_rms(x, width, a.eps);
            const auto product = [s](Turn g, Turn v, Turn w) { return g * (1.0f + w) * (v * s); };
            const float mean = sum(width, product, dy, x, a.weight) / float(width);
            map(share, width, [s](Turn sofar, Turn g, Turn v) { return sofar + g * (v * s); }, share, dy, x);
            const auto gradient = [s, mean](Turn g, Turn v, Turn w) { return s * (g * (1.0f + w) - v * s * mean); };
            map(a.d_x + r * width, width, gradient, dy, x, a.weight);
        }
    });
}

void gated_norm(const GatedNormArgs& a) {
    for_rows(a.rows, a.dim, [&](int64_t r) {
        const float* const o = a.o + r * a.dim;
        const float s = inverse_rms(o, a.dim, a.eps);
        map(a.y + r * a.dim, a.dim, [s](Turn v, Turn w, Turn z) { return v * s * w * silu(z); }, o, a.weight, a.z + r * a.dim);
    });
}

void gated_norm_backward(const GatedNormBackwardArgs& a) {
    const GatedNormArgs& in = a.forward;
    const int64_t dim = in.dim;
    sum_of_shares(in.rows, ROWS, dim, in.rows * dim < SERIAL_ELEMENTS, a.d_weight, [&](int64_t first, int64_t last, float* share) {
        float* const gate = static_cast<float*>(scratch(1, 2 * dim * int64_t(sizeof(float))));
        float* const through = gate + dim;  // d_y silu(z)
        for (int64_t r = first; r < last; ++r) {
            const float* const o = in.o + r * dim;
            const uint16_t *z = in.z + r * dim, *dy = a.d_y + r * dim;
            const float s = inverse_rms(o, dim, in.eps);
            map(gate, dim, [](Turn v) { return sigmoid(v); }, z);
            map(through, dim, [](Turn d, Turn v, Turn g) { return d * (v * g); }, dy, z, gate);
            const auto of_gate = [s](Turn d, Turn v, Turn w, Turn x, Turn g) { return d * (v * s) * w * silu_slope(x, g); };
            map(a.d_z + r * dim, dim, of_gate, dy, o, in.weight, z, gate);
            map(share, dim, [s](Turn sofar, Turn t, Turn v) { return sofar + t * (v * s); }, share, through, o);
            const float mean = sum(dim, [s](Turn t, Turn v, Turn w) { return t * w * (v * s); }, through, o, in.weight) / float(dim);
            const auto of_o = [s, mean](Turn t, Turn v, Turn w) { return s * (t * w - v * s * mean); };
            map(a.d_o + r * dim, dim, of_o, through, o, in.weight);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
