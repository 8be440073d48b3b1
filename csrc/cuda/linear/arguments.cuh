// What the small products are given; mirrored in ocrquant/kernels/cuda/arguments.py. Strides count elements.
#pragma once

#include <cstdint>

namespace ocrquant {

struct LinearArgs {
    const uint16_t* x;           // bf16 [M, K]
    const uint8_t* codes;        // E2M1 [n, K / 2], the even column in the low nibble, or E4M3 [n, K]
    const uint8_t* block_scale;  // E4M3 [n, K / 16], row-major; null for FP8
    const float* channel_scale;  // [n]
    const void* bias;            // bf16 or float32 [n], or null
    void* out;                   // bf16 or float32 [M, n]
    int64_t x_stride, out_stride, rows, inputs, outputs;
    int32_t is_float, is_bias_float;  // whether out and bias are float32
};

}  // namespace ocrquant
