#pragma once

#include <cstdint>

#include "common/operand.h"

namespace ocrquant {

struct QuantizeArgs {
    const uint16_t* x;
    OperandRows out;
    int64_t rows;
    int64_t width;
    int64_t x_stride;
};

}  // namespace ocrquant
