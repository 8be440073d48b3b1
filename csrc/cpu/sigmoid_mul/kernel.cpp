// y = round(x * round(sigmoid(gate))), the gate behind the query of each head; then the operand's forms.
#include "common/produce.h"
#include "sigmoid_mul/args.h"

namespace ocrquant::OCRQUANT_ISA {

void sigmoid_mul(const SigmoidMulArgs& a) {
    const int64_t dim = a.head_dim;
    produce_parts(a.rows, a.heads * dim, dim, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        for (int64_t i = first; i < last; i += dim) {
            const uint16_t* const gate = a.qg + r * a.qg_stride + i / dim * a.qg_head_stride + dim;
            map(y + i, dim, [](Turn x, Turn g) { return x * rounded(sigmoid(g)); }, a.x + r * a.x_stride + i, gate);
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
