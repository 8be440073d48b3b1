#include "common/bind.h"
#include "delta/bind.h"
#include "gated_delta_rows/args.h"

OCRQUANT_DECLARE(gated_delta_rows, GatedDeltaRowsArgs)

namespace ocrquant {

void bind_gated_delta_rows(nb::module_& m) {
    bind_delta_rows(m);
    m.def(
        "gated_delta_rows",
        [](const DeltaRows& rows, Address state, Address fresh) {
            launch("gated_delta_rows", OCRQUANT_PICK(gated_delta_rows),
                   GatedDeltaRowsArgs{rows, at<float>(state), at<const int32_t>(fresh)});
        },
        release_gil());
}

}  // namespace ocrquant
