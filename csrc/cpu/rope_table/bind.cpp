#include "common/bind.h"
#include "rope_table/args.h"

OCRQUANT_DECLARE(rope_table, RopeTableArgs)

namespace ocrquant {

void bind_rope_table(nb::module_& m) {
    m.def(
        "rope_table",
        [](Address positions, int64_t position_axis, Address inv_freq, Address axis, Address cos, Address sin, int64_t rows,
           int64_t half, bool to_bf16) {
            const RopeTableArgs args{at<const int32_t>(positions), position_axis, at<const float>(inv_freq),
                                     at<const int32_t>(axis),      at<float>(cos), at<float>(sin),
                                     rows,                         half,           to_bf16};
            launch("rope_table", OCRQUANT_PICK(rope_table), args);
        },
        release_gil());
}

}  // namespace ocrquant
