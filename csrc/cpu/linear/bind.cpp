#include "common/bind.h"
#include "linear/args.h"

OCRQUANT_DECLARE(linear, LinearArgs)

namespace ocrquant {

void bind_linear(nb::module_& m) {
    m.def(
        "linear",
        [](int kind, Address weight, Address channel_scale, Address x, Address x_scale, Address encode_scale, Address out,
           int64_t out_stride, int out_type, Address bias, int bias_type, int64_t rows, int64_t out_features,
           int64_t in_features) {
            const LinearArgs args{static_cast<LinearKind>(kind), at<const uint8_t>(weight), at<const float>(channel_scale),
                                  at<const uint8_t>(x), at<const uint8_t>(x_scale), at<const float>(encode_scale), at<uint8_t>(out),
                                  out_stride, static_cast<Float>(out_type), at<const uint8_t>(bias), static_cast<Float>(bias_type),
                                  rows, out_features, in_features};
            launch("linear", OCRQUANT_PICK_AMX(linear), args);
        },
        release_gil());
}

}  // namespace ocrquant
