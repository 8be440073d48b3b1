// Per head: RMS norm, weight, SiLU gate, with the casts of Qwen3_5RMSNormGated; then the operand's forms.
#include "common/produce.h"
#include "gated_rms_norm/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

#if defined(OCRQUANT_WITH_AVX512)
float scale_of(const uint16_t* o, int64_t dim, float eps) { return inverse_rms_of_lines(o, dim, eps); }
#else
float scale_of(const uint16_t* o, int64_t dim, float eps) { return inverse_rms(o, dim, eps); }
#endif

void head(const GatedRmsNormArgs& a, const uint16_t* o, const uint16_t* z, float scale, uint16_t* y) {
    const auto gated = [](auto normed, auto gate, auto w) { return rounded(rounded(normed) * rounded(w)) * silu(gate); };
#if defined(OCRQUANT_WITH_AVX512)
    for_lines(a.head_dim, [&](int64_t i, int64_t n) {
        store_columns(y + i, gated(columns(o + i, n) * scale, columns(z + i, n), columns(a.weight + i, n)), n);
    });
#else
    map(y, a.head_dim, [&](Turn v, Turn g, Turn w) { return gated(v * scale, g, w); }, o, z, a.weight);
#endif
}

}  // namespace

void gated_rms_norm(const GatedRmsNormArgs& a) {
    const int64_t dim = a.head_dim;
    produce_parts(a.rows, a.heads * dim, dim, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        const uint16_t *const o = a.o + r * a.o_stride, *const z = a.z + r * a.z_stride;
        // All scales first, lest each head wait for its own.
        float* const scales = static_cast<float*>(scratch(3, (last - first) / dim * int64_t(sizeof(float))));
        for (int64_t i = first; i < last; i += dim) scales[(i - first) / dim] = scale_of(o + i, dim, a.eps);
        for (int64_t i = first; i < last; i += dim) head(a, o + i, z + i, scales[(i - first) / dim], y + i);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
