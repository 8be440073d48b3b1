#include "rms_norm/args.h"
#include "common/bind_operand.h"

OCRQUANT_DECLARE(rms_norm, RmsNormArgs)

namespace ocrquant {

void bind_rms_norm(nb::module_& m) {
    m.def(
        "rms_norm",
        [](Address x, Address delta, Address weight, const OperandAddresses& out, int64_t rows, int64_t width,
           int64_t x_stride, int64_t delta_stride, float eps, bool is_unit) {
            launch("rms_norm", OCRQUANT_PICK(rms_norm),
                   RmsNormArgs{at<uint16_t>(x), at<const uint16_t>(delta), at<const float>(weight),
                               operand_rows(out), rows, width, x_stride, delta_stride, eps, is_unit});
        },
        release_gil());
}

}  // namespace ocrquant
