#pragma once

#include <cstdint>

namespace ocrquant {

struct GeluArgs {
    const uint16_t* x;
    uint16_t* out;
    int64_t rows;
    int64_t width;
    int64_t x_stride;
    int64_t out_stride;
    bool is_tanh;
};

}  // namespace ocrquant
