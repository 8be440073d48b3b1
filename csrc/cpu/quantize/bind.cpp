#include "quantize/args.h"
#include "common/bind_operand.h"

OCRQUANT_DECLARE(quantize, QuantizeArgs)

namespace ocrquant {

void bind_quantize(nb::module_& m) {
    m.def(
        "quantize",
        [](Address x, const OperandAddresses& out, int64_t rows, int64_t width, int64_t x_stride) {
            launch("quantize", OCRQUANT_PICK(quantize),
                   QuantizeArgs{at<const uint16_t>(x), operand_rows(out), rows, width, x_stride});
        },
        release_gil());
}

}  // namespace ocrquant
