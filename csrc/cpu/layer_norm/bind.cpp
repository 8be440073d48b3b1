#include "layer_norm/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(layer_norm, LayerNormArgs)

namespace ocrquant {

void bind_layer_norm(nb::module_& m) {
    m.def(
        "layer_norm",
        [](Address x, Address weight, Address bias, Address out, int64_t rows, int64_t width, int64_t x_stride,
           int64_t out_stride, float eps) {
            launch("layer_norm", OCRQUANT_PICK(layer_norm),
                   LayerNormArgs{at<const uint16_t>(x), at<const float>(weight), at<const float>(bias),
                                 at<uint16_t>(out), rows, width, x_stride, out_stride, eps});
        },
        release_gil());
}

}  // namespace ocrquant
