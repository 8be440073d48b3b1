#include "causal_conv/args.h"
#include "common/bind.h"

OCRQUANT_DECLARE(causal_conv, CausalConvArgs)

namespace ocrquant {

void bind_causal_conv(nb::module_& m) {
    m.def(
        "causal_conv",
        [](Address x, int64_t x_stride, Address weight, Address tail, Address q_start, Address slots, Address fresh,
           Address out, Address record, int64_t window, int64_t requests, int64_t channels) {
            launch("causal_conv", OCRQUANT_PICK(causal_conv),
                   CausalConvArgs{at<const uint16_t>(x), x_stride, at<const uint16_t>(weight), at<uint16_t>(tail),
                                  at<const int32_t>(q_start), at<const int32_t>(slots), at<const int32_t>(fresh),
                                  at<uint16_t>(out), at<uint16_t>(record), window, requests, channels});
        },
        release_gil());
}

}  // namespace ocrquant
