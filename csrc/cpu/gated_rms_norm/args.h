#pragma once

#include <cstdint>

#include "common/operand.h"

namespace ocrquant {

struct GatedRmsNormArgs {
    const uint16_t* o;
    const uint16_t* z;
    const float* weight;  // [head_dim]
    OperandRows out;
    int64_t rows;
    int64_t heads;
    int64_t head_dim;
    int64_t o_stride;
    int64_t z_stride;
    float eps;
};

}  // namespace ocrquant
