#include <nanobind/stl/tuple.h>

#include "common/bind.h"
#include "local_convolution/args.h"

OCRQUANT_DECLARE(local_convolution, LocalConvolutionArgs)

namespace ocrquant {

void bind_local_convolution(nb::module_& m) {
    using Six = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
    m.def(
        "local_convolution",
        [](Address y, Address base, Address added, Address out, Six rows_width_block_taps_group_added_row) {
            const auto [rows, width, block, taps, group, added_row] = rows_width_block_taps_group_added_row;
            const LocalConvolutionArgs args{at<const uint16_t>(y),
                                            at<const uint16_t>(base),
                                            at<const uint16_t>(added),
                                            at<uint16_t>(out),
                                            rows,
                                            width,
                                            block,
                                            taps,
                                            group,
                                            added_row};
            launch("local_convolution", OCRQUANT_PICK(local_convolution), args);
        },
        release_gil());
}

}  // namespace ocrquant
