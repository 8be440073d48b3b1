// Per head: RMS norm, weight, SiLU gate, with the casts of Qwen3_5RMSNormGated; then the operand's forms.
#include "common/produce.h"
#include "gated_rms_norm/args.h"

namespace ocrquant::OCRQUANT_ISA {

void gated_rms_norm(const GatedRmsNormArgs& a) {
    const int64_t dim = a.head_dim;
    produce_parts(a.rows, a.heads * dim, dim, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        for (int64_t i = first; i < last; i += dim) {
            const uint16_t* const o = a.o + r * a.o_stride + i;
            const float scale = inverse_rms(o, dim, a.eps);
            const auto gated = [scale](Turn v, Turn z, Turn w) { return rounded(rounded(v * scale) * rounded(w)) * silu(z); };
            map(y + i, dim, gated, o, a.z + r * a.z_stride + i, a.weight);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
