// y = round(x * round(sigmoid(gate))), the gate behind the query of each head; then the operand's forms.
#include "common/produce.h"
#include "sigmoid_mul/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

void head(const uint16_t* x, const uint16_t* gate, int64_t dim, uint16_t* y) {
    const auto gated = [](auto v, auto g) { return v * rounded(sigmoid(g)); };
#if defined(OCRQUANT_WITH_AVX512)
    for_lines(dim, [&](int64_t i, int64_t n) { store_columns(y + i, gated(columns(x + i, n), columns(gate + i, n)), n); });
#else
    map(y, dim, [&](Turn v, Turn g) { return gated(v, g); }, x, gate);
#endif
}

}  // namespace

void sigmoid_mul(const SigmoidMulArgs& a) {
    const int64_t dim = a.head_dim;
    produce_parts(a.rows, a.heads * dim, dim, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        for (int64_t i = first; i < last; i += dim) {
            const uint16_t* const gate = a.qg + r * a.qg_stride + i / dim * a.qg_head_stride + dim;
            head(a.x + r * a.x_stride + i, gate, dim, y + i);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
