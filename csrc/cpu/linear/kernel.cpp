// out = x @ weight.T, scaled and biased; see ocrquant/kernels/linear/reference.py.
#include "linear/plan.h"

namespace ocrquant::OCRQUANT_ISA {

void linear(const LinearArgs& args) {
    if (args.rows == 0 || args.out_features == 0) return;
#if defined(OCRQUANT_WITH_AMX)
    // One row of bf16 or FP8 goes through tiles too: its result may not depend on how many there are.
    args.kind == LinearKind::nvfp4 && args.rows <= FEW_ROWS ? linear_nvfp4(args) : linear_tiles(args);
#else
    args.kind == LinearKind::nvfp4 ? linear_nvfp4(args) : linear_float(args);
#endif
}

}  // namespace ocrquant::OCRQUANT_ISA
