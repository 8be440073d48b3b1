#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "vision_rope/args.h"

OCRQUANT_DECLARE(vision_rope, VisionRopeArgs)

namespace ocrquant {

void bind_vision_rope(nb::module_& m) {
    using Strided = std::tuple<Address, int64_t, int64_t>;
    m.def(
        "vision_rope",
        [](Strided q, Strided k, Address cos, Address sin, int64_t rows, int64_t heads, int64_t dim) {
            const auto [q_at, q_row, q_head] = q;
            const auto [k_at, k_row, k_head] = k;
            const VisionRopeArgs args{at<uint16_t>(q_at),    at<uint16_t>(k_at),    q_row, q_head, k_row, k_head,
                                      at<const float>(cos), at<const float>(sin), rows,  heads,  dim};
            launch("vision_rope", OCRQUANT_PICK(vision_rope), args);
        },
        release_gil());
}

}  // namespace ocrquant
