#include "sigmoid_mul/args.h"
#include "common/bind_operand.h"

OCRQUANT_DECLARE(sigmoid_mul, SigmoidMulArgs)

namespace ocrquant {

void bind_sigmoid_mul(nb::module_& m) {
    m.def(
        "sigmoid_mul",
        [](Address x, Address qg, const OperandAddresses& out, int64_t rows, int64_t heads, int64_t head_dim,
           int64_t x_stride, int64_t qg_stride, int64_t qg_head_stride) {
            launch("sigmoid_mul", OCRQUANT_PICK(sigmoid_mul),
                   SigmoidMulArgs{at<const uint16_t>(x), at<const uint16_t>(qg), operand_rows(out), rows, heads,
                                  head_dim, x_stride, qg_stride, qg_head_stride});
        },
        release_gil());
}

}  // namespace ocrquant
