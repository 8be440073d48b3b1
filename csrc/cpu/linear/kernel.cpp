// out = x @ weight.T, scaled and biased; see ocrquant/kernels/linear/reference.py.
#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

void linear(const LinearArgs& args) {
    if (args.rows == 0 || args.out_features == 0) return;
    args.kind == LinearKind::nvfp4 ? linear_nvfp4(args) : linear_float(args);
}

}  // namespace ocrquant::OCRQUANT_ISA
