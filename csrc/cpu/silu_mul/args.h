#pragma once

#include <cstdint>

#include "common/operand.h"

namespace ocrquant {

struct SiluMulArgs {
    const uint16_t* gate_up;
    OperandRows out;
    int64_t rows;
    int64_t width;  // of the result
    int64_t stride;  // of gate_up
};

}  // namespace ocrquant
