// Per head: RMS norm, weight, SiLU gate, with the casts of Qwen3_5RMSNormGated; then the operand's forms.
#include "common/produce.h"
#include "gated_rms_norm/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

void head(const GatedRmsNormArgs& a, const uint16_t* o, const uint16_t* z, uint16_t* y) {
    const auto gated = [](auto normed, auto z, auto w) { return rounded(rounded(normed) * rounded(w)) * silu(z); };
#if defined(OCRQUANT_WITH_AVX512)
    const float scale = inverse_rms_of_lines(o, a.head_dim, a.eps);
    for_lines(a.head_dim, [&](int64_t i, int64_t n) {
        store_columns(y + i, gated(columns(o + i, n) * scale, columns(z + i, n), columns(a.weight + i, n)), n);
    });
#else
    const float scale = inverse_rms(o, a.head_dim, a.eps);
    map(y, a.head_dim, [&](Turn v, Turn g, Turn w) { return gated(v * scale, g, w); }, o, z, a.weight);
#endif
}

}  // namespace

void gated_rms_norm(const GatedRmsNormArgs& a) {
    const int64_t dim = a.head_dim;
    produce_parts(a.rows, a.heads * dim, dim, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        for (int64_t i = first; i < last; i += dim) head(a, a.o + r * a.o_stride + i, a.z + r * a.z_stride + i, y + i);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
