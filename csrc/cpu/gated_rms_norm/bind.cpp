#include "gated_rms_norm/args.h"
#include "common/bind_operand.h"

OCRQUANT_DECLARE(gated_rms_norm, GatedRmsNormArgs)

namespace ocrquant {

void bind_gated_rms_norm(nb::module_& m) {
    m.def(
        "gated_rms_norm",
        [](Address o, Address z, Address weight, const OperandAddresses& out, int64_t rows, int64_t heads,
           int64_t head_dim, int64_t o_stride, int64_t z_stride, float eps) {
            launch("gated_rms_norm", OCRQUANT_PICK(gated_rms_norm),
                   GatedRmsNormArgs{at<const uint16_t>(o), at<const uint16_t>(z), at<const float>(weight),
                                    operand_rows(out), rows, heads, head_dim, o_stride, z_stride, eps});
        },
        release_gil());
}

}  // namespace ocrquant
