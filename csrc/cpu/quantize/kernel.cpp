// Rows into every form of an operand.
#include "common/produce.h"
#include "quantize/args.h"

namespace ocrquant::OCRQUANT_ISA {

void quantize(const QuantizeArgs& a) {
    if (a.out.plain) {
        produce_parts(a.rows, a.width, BLOCK, a.out, [&](int64_t r, int64_t first, int64_t last, uint16_t* y) {
            std::memmove(y + first, a.x + r * a.x_stride + first, size_t(last - first) * sizeof(uint16_t));
        });
        return;
    }
    for_some_rows(a.rows, a.width, [&](int64_t first, int64_t last) {
        const int64_t together = a.x_stride == a.width ? last - first : 1;
        for (int64_t r = first; r < last; r += together) emit_rows(a.out, r, together, a.x + r * a.x_stride, a.width);
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
