#include "silu_mul/args.h"
#include "common/bind_operand.h"

OCRQUANT_DECLARE(silu_mul, SiluMulArgs)

namespace ocrquant {

void bind_silu_mul(nb::module_& m) {
    m.def(
        "silu_mul",
        [](Address gate_up, const OperandAddresses& out, int64_t rows, int64_t width, int64_t stride) {
            launch("silu_mul", OCRQUANT_PICK(silu_mul),
                   SiluMulArgs{at<const uint16_t>(gate_up), operand_rows(out), rows, width, stride});
        },
        release_gil());
}

}  // namespace ocrquant
