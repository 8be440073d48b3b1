#pragma once

#include <cstdint>

namespace ocrquant {

struct LayerNormArgs {
    const uint16_t* x;
    const float* weight;
    const float* bias;
    uint16_t* out;
    int64_t rows;
    int64_t width;
    int64_t x_stride;
    int64_t out_stride;
    float eps;
};

}  // namespace ocrquant
