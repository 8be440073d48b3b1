#include "gelu/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(gelu, GeluArgs)

namespace ocrquant {

void bind_gelu(nb::module_& m) {
    m.def(
        "gelu",
        [](Address x, Address out, int64_t rows, int64_t width, int64_t x_stride, int64_t out_stride, bool is_tanh) {
            launch("gelu", OCRQUANT_PICK(gelu),
                   GeluArgs{at<const uint16_t>(x), at<uint16_t>(out), rows, width, x_stride, out_stride, is_tanh});
        },
        release_gil());
}

}  // namespace ocrquant
