#pragma once

#include <cstdint>

#include "common/operand.h"

namespace ocrquant {

struct RmsNormArgs {
    uint16_t* x;  // overwritten where there is a delta
    const uint16_t* delta;  // or null
    const float* weight;
    OperandRows out;
    int64_t rows;
    int64_t width;
    int64_t x_stride;
    int64_t delta_stride;
    float eps;
    bool is_unit;  // weights count from one and nothing is rounded on the way
};

}  // namespace ocrquant
