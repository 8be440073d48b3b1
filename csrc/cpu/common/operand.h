// The forms of an operand as kernels see them: ocrquant.kernels.operand, in addresses.
#pragma once

#include <cstdint>

namespace ocrquant {

// Dense rows of one width w: plain [R, w], fp8 [R, w], fp8_scale [R], nvfp4 [R, w / 2], nvfp4_scale [R, w / 16],
// encode_scale [1]. A form that is not wanted is null.
struct OperandRows {
    uint16_t* plain;
    uint8_t* fp8;
    float* fp8_scale;
    uint8_t* nvfp4;
    uint8_t* nvfp4_scale;
    const float* encode_scale;
};

}  // namespace ocrquant
