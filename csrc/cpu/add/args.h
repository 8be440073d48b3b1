#pragma once

#include <cstdint>

namespace ocrquant {

// out_row: elements from row to row of the sum.
struct AddArgs {
    const uint16_t* a;
    const uint16_t* b;
    uint16_t* out;
    int64_t rows, width, out_row;
};

}  // namespace ocrquant
