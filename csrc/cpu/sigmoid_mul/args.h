#pragma once

#include <cstdint>

#include "common/operand.h"

namespace ocrquant {

struct SigmoidMulArgs {
    const uint16_t* x;
    const uint16_t* qg;  // [rows, heads, 2 head_dim]
    OperandRows out;
    int64_t rows;
    int64_t heads;
    int64_t head_dim;
    int64_t x_stride;
    int64_t qg_stride;
    int64_t qg_head_stride;
};

}  // namespace ocrquant
