#include "common/bind.h"
#include "pixel_values/args.h"

OCRQUANT_DECLARE(pixel_values, PixelValuesArgs)

namespace ocrquant {

void bind_pixel_values(nb::module_& m) {
    m.def(
        "pixel_values",
        [](Address codes, Address levels, Address out, int64_t rows, int64_t channels, int64_t frames, int64_t pixels) {
            launch("pixel_values", OCRQUANT_PICK(pixel_values),
                   PixelValuesArgs{at<const uint8_t>(codes), at<const uint16_t>(levels), at<uint16_t>(out), rows, channels, frames,
                                   pixels});
        },
        release_gil());
}

}  // namespace ocrquant
