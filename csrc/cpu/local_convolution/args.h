#pragma once

#include <cstdint>

namespace ocrquant {

// added_row: elements from row to row; base and added begin with the side that is meant.
struct LocalConvolutionArgs {
    const uint16_t *y, *base, *added;
    uint16_t* out;
    int64_t rows, width, block, taps, group, added_row;
};

}  // namespace ocrquant
