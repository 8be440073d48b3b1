// y = round(round(silu(gate)) * up), gate and up the halves of a row; then the operand's forms.
#include "common/produce.h"
#include "common/silu_table.h"
#include "silu_mul/args.h"

namespace ocrquant::OCRQUANT_ISA {

void silu_mul(const SiluMulArgs& a) {
    produce_parts(a.rows, a.width, BLOCK, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        const uint16_t* const gate = a.gate_up + r * a.stride + first;
        silu_row(gate, last - first, y + first);
        map(y + first, last - first, [](Turn g, Turn up) { return g * up; }, y + first, gate + a.width);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
