// y = round(round(silu(gate)) * up), gate and up the halves of a row; then the operand's forms.
#include "common/produce.h"
#include "common/silu_table.h"
#include "silu_mul/args.h"
#if defined(OCRQUANT_WITH_AVX512)
#include "common/row_lines.h"
#endif

namespace ocrquant::OCRQUANT_ISA {

namespace {

// y = round(y x)
void product(uint16_t* y, const uint16_t* x, int64_t count) {
#if defined(OCRQUANT_WITH_AVX512)
    for_lines(count, [&](int64_t i, int64_t n) { store_columns(y + i, columns(y + i, n) * columns(x + i, n), n); });
#else
    map(y, count, [](Turn a, Turn b) { return a * b; }, y, x);
#endif
}

}  // namespace

void silu_mul(const SiluMulArgs& a) {
    produce_parts(a.rows, a.width, BLOCK, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
        const uint16_t* const gate = a.gate_up + r * a.stride + first;
        silu_row(gate, last - first, y + first);
        product(y + first, gate + a.width, last - first);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
