#include "common/bind.h"
#include "gated_delta_window/args.h"

OCRQUANT_DECLARE(gated_delta_window, GatedDeltaWindowArgs)

namespace ocrquant {

void bind_gated_delta_window(nb::module_& m) {
    m.def(
        "gated_delta_window",
        [](const DeltaRows& rows, Address state, Address states, int64_t window) {
            launch("gated_delta_window", OCRQUANT_PICK(gated_delta_window),
                   GatedDeltaWindowArgs{rows, at<const float>(state), at<float>(states), window});
        },
        release_gil());
}

}  // namespace ocrquant
