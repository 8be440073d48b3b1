// Where a producer writes its rows; mirrored in ocrquant/kernels/cuda/arguments.py.
#pragma once

#include <cstdint>

namespace ocrquant {

// Forms that are not wanted are null. Rows are dense.
struct OperandOut {
    uint16_t* plain;            // bf16 [R, w]
    uint8_t* fp8;               // E4M3 codes [R, w]
    float* fp8_scale;           // [R], written: one scale a token; null where fp8_static is given
    const float* fp8_static;    // [1], read: one scale for all
    uint8_t* nvfp4;             // E2M1 codes [R, w / 2]
    uint8_t* nvfp4_scale;       // E4M3: row-major [R, w / 16], or swizzled and padded
    const float* encode_scale;  // [1], the global scale of nvfp4
    int64_t rows, width;
    int32_t is_swizzled;
};

}  // namespace ocrquant
